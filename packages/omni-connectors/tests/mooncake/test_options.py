"""What `extra` may hold: the documented keys and defaults, refused where they are wrong before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from omni_connectors.mooncake import MooncakeStoreConnector
from omni_connectors.mooncake.options import MooncakeStoreOptions
from omni_core.connector import Role
from omni_core.errors import ConfigError, DependencyError
from omni_core.testing.connector_peer import make_edge


def test_defaults_are_the_documented_ones() -> None:
    """CN-02."""
    assert MooncakeStoreOptions().model_dump() == {
        "host": "127.0.0.1",
        "metadata_server": "http://127.0.0.1:8080/metadata",
        "master": "127.0.0.1:50051",
        "segment": 512 * 2**20,
        "localbuf": 64 * 2**20,
        "proto": "tcp",
        "rdma": "",
        "setup_timeout_s": 30.0,
    }


@pytest.mark.parametrize(
    "values",
    [
        {"segment": "abc"},
        {"segment": 1},
        {"localbuf": -1},
        {"proto": "tpc"},
        {"master": "127.0.0.1"},
        {"master": "localhost:port"},
        {"metadata_server": "nowhere"},
        {"host": ""},
        {"setup_timeout_s": 0.0},
        {"sgment": 2**30},
    ],
    ids=str,
)
def test_wrong_options_are_refused(values: dict[str, object], run_dir: str) -> None:
    """B16."""
    with pytest.raises(ValidationError):
        MooncakeStoreOptions.model_validate(values)
    with pytest.raises(ConfigError, match=next(iter(values))):
        MooncakeStoreConnector(make_edge(run_dir, Role.SENDER), values)


@pytest.mark.parametrize(
    "values", [{"metadata_server": "P2PHANDSHAKE"}, {"metadata_server": "etcd://10.0.0.1:2379"}, {"proto": "rdma"}], ids=str
)
def test_other_forms_are_accepted(values: dict[str, object]) -> None:
    assert MooncakeStoreOptions.model_validate(values)


def test_a_missing_package_is_named_with_edge_and_remedy(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B16."""
    monkeypatch.setitem(sys.modules, "mooncake", None)

    with pytest.raises(DependencyError, match="'under_test' between stages 0 and 1 needs Mooncake") as caught:
        MooncakeStoreConnector(make_edge(run_dir, Role.SENDER), {})
    assert "omni-connectors[mooncake]" in caught.value.hint
    assert "libibverbs1" in caught.value.hint


def test_options_are_read_without_the_store() -> None:
    code = "import sys, omni_connectors.mooncake.options; print([m for m in ('mooncake', 'torch') if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
