"""The connector passes the suite that omni-core offers for every connector."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from omni_plugin_echo.connector import EchoFilesConnector
from omni_plugin_echo.options import EchoFilesOptions
from pydantic import ValidationError

from omni_core.connector import ConnectorFull, PayloadTooLarge, Role
from omni_core.testing.connector_peer import make_edge
from omni_core.testing.connector_suite import ConnectorConformance


class TestEchoFilesConnector(ConnectorConformance):
    target = "omni_plugin_echo.connector:EchoFilesConnector"

    def test_a_payload_above_the_limit_is_refused(self, run_dir: str) -> None:
        end = EchoFilesConnector(make_edge(run_dir, Role.SENDER), {"max_payload_bytes": 1000})

        end.put("request", 0, {"x": b"y" * 100}, 1.0)
        with pytest.raises(PayloadTooLarge, match="max_payload_bytes"):
            end.put("request", 1, {"x": b"y" * 1000}, 1.0)

        assert end.health()["in_flight"] == 1
        end.close()

    def test_a_full_disk_is_reported_and_leaves_no_file(self, run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
        end = EchoFilesConnector(make_edge(run_dir, Role.SENDER), {})

        def fill(path: Path, data: bytes) -> int:
            path.touch()
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", fill)
        with pytest.raises(ConnectorFull):
            end.put("request", 0, {"x": 1}, 1.0)

        assert os.listdir(Path(run_dir) / "echo-files-0-1") == []
        assert end.health()["in_flight"] == 0


@pytest.mark.parametrize("values", [{"max_payload_bytes": 0}, {"max_payload_bytes": "1"}, {"max_bytes": 1}], ids=str)
def test_wrong_options_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EchoFilesOptions.model_validate(values)
