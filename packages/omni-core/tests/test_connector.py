"""The interface of connectors: its errors are those of core, and the conformance suite finds what is wrong with a connector."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from omni_core import connector
from omni_core.connector import ConnectorError
from omni_core.errors import ServiceError

ERRORS = ("PayloadNotReady", "PeerGone", "StoreGone", "ConnectorFull", "PayloadTooLarge")

MODULE = """
import itertools
from omni_core.connector import Connector, ConnectorError, PayloadNotReady
from omni_core.payload import decode_payload, encode_payload

STORE = {{}}
IDS = itertools.count()

class Mine(Connector):
    closed = False

    def put(self, request_id, sequence, payload, timeout_s):
        if self.closed:
            raise ConnectorError("closed")
        key = next(IDS)
        STORE[key] = (self.edge.run_dir, self.edge.to_stage, request_id, encode_payload(payload))
        return b"%d" % key

    def get(self, handle, timeout_s):
        if self.closed:
            raise ConnectorError("closed")
        try:
            return decode_payload(bytearray(STORE.{take}(int(handle))[3]))
        except (KeyError, ValueError):
            raise PayloadNotReady("not there") from None

    def cleanup(self, request_id):
        place = (self.edge.run_dir, self.edge.to_stage, request_id)
        for key in [key for key, value in list(STORE.items()) if value[:3] == place]:
            {forget}

    def health(self):
        mine = [v for v in list(STORE.values()) if v[:2] == (self.edge.run_dir, self.edge.to_stage)]
        return {{"in_flight": len(mine), "bytes_in_flight": sum(len(v[3]) for v in mine)}}

    def close(self):
        self.closed = True
"""

TESTS = """
from omni_core.testing.connector_suite import ConnectorConformance

class TestMine(ConnectorConformance):
    target = "mine:Mine"
"""


@pytest.mark.parametrize("name", ERRORS)
def test_every_connector_error_is_one_of_the_servers(name: str) -> None:
    kind = getattr(connector, name)

    error = pickle.loads(pickle.dumps(kind("full", where="shm", hint="wait")))

    assert isinstance(error, ConnectorError)
    assert isinstance(error, ServiceError)
    assert type(error) is kind
    assert str(error) == "shm: full (wait)"


def run_suite(folder: Path, take: str, forget: str, only: str = "not process and not killed") -> str:
    """Run the suite against a connector that keeps payloads in one process."""
    (folder / "mine.py").write_text(MODULE.format(take=take, forget=forget))
    (folder / "test_mine.py").write_text(textwrap.dedent(TESTS))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", only, "test_mine.py"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.stdout


def test_the_suite_passes_a_correct_connector(tmp_path: Path) -> None:
    report = run_suite(tmp_path, take="pop", forget="STORE.pop(key, None)")

    assert "failed" not in report
    assert "passed" in report


FAULTS = {
    "delivers twice": ("__getitem__", "STORE.pop(key, None)", "test_a_payload_is_delivered_once"),
    "keeps what is cleaned up": ("pop", "pass", "test_cleanup_frees_what_was_not_fetched"),
}


@pytest.mark.parametrize(("take", "forget", "test"), FAULTS.values(), ids=FAULTS)
def test_the_suite_finds_a_fault(tmp_path: Path, take: str, forget: str, test: str) -> None:
    report = run_suite(tmp_path, take=take, forget=forget, only=test)

    assert f"TestMine::{test}" in report
    assert "failed" in report
