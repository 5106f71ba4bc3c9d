"""The Mooncake connector passes the suite of every connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from omni_connectors.mooncake import MooncakeStoreConnector
from omni_connectors.testing import MooncakeMaster
from omni_core.connector import Role
from omni_core.testing.connector_peer import make_edge
from omni_core.testing.connector_suite import ConnectorConformance

TARGET = "omni_connectors.mooncake:MooncakeStoreConnector"
MIB = 2**20


@pytest.fixture(scope="module")
def clients(master: MooncakeMaster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """Keep the process's clients, which take seconds to close, from test to test."""
    options = master.options(segment=256 * MIB)
    folder = str(tmp_path_factory.mktemp("clients"))
    kept = [MooncakeStoreConnector(make_edge(folder, role, 9, 9, 9), options) for role in Role]
    yield options
    for end in kept:
        end.close()


class TestMooncakeStoreConnector(ConnectorConformance):
    target = TARGET

    @pytest.fixture
    def options(self, clients: Mapping[str, Any]) -> Mapping[str, Any]:
        return clients
