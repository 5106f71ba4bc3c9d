"""The shared-memory connector passes the suite of every connector, and keeps its own promises."""

from __future__ import annotations

import pytest

from omni_connectors.shm import SharedMemoryConnector
from omni_core.connector import Role
from omni_core.errors import ConfigError
from omni_core.testing.connector_peer import make_edge
from omni_core.testing.connector_suite import ConnectorConformance


class TestSharedMemoryConnector(ConnectorConformance):
    target = "omni_connectors.shm:SharedMemoryConnector"

    def test_it_takes_no_options(self, run_dir: str) -> None:
        """CN-02."""
        with pytest.raises(ConfigError, match="no options"):
            SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {"size": 1})

    def test_a_run_directory_that_others_can_read_is_refused(self, tmp_path) -> None:
        folder = tmp_path / "open"
        folder.mkdir(mode=0o755)

        with pytest.raises(ConfigError, match="0700"):
            SharedMemoryConnector(make_edge(str(folder), Role.SENDER), {})

    def test_a_run_directory_that_is_not_there_is_refused(self, tmp_path) -> None:
        with pytest.raises(ConfigError, match="run directory"):
            SharedMemoryConnector(make_edge(str(tmp_path / "none"), Role.RECEIVER), {})
