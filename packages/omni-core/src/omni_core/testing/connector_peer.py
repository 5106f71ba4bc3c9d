"""One end of an edge in a process of its own, driven by a test: `Peer` starts it, `python -m` this module is it.

Requests and answers are lines of JSON on the process's stdin and stdout. Payloads are described, not sent: see `make_payload`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from omni_core.connector import Connector, ConnectorEdge, Role
from omni_core.errors import OmniError
from omni_core.target import load_target


def make_edge(run_dir: str, role: Role, replica: int = 0, from_stage: int = 0, to_stage: int = 1) -> ConnectorEdge:
    """Return one end of an edge named `under_test`."""
    return ConnectorEdge("under_test", from_stage, to_stage, role, replica, run_dir, "run")


def make_connector(target: str, options: Mapping[str, Any], edge: ConnectorEdge) -> Connector:
    """Load the connector class of a target and make one end."""
    kind = load_target(target)
    assert isinstance(kind, type)
    assert issubclass(kind, Connector)
    return kind(edge, options)


def make_payload(nbytes: int, seed: int) -> dict[str, Any]:
    """Return a payload with an array of `nbytes` bytes that depend on `seed`."""
    return {"seed": seed, "data": np.resize(np.random.default_rng(seed).integers(0, 256, 4099, np.uint8), nbytes)}


def is_payload(payload: Mapping[str, Any], nbytes: int, seed: int) -> bool:
    """Return whether this is what `make_payload` made."""
    return bool(payload["seed"] == seed and np.array_equal(payload["data"], make_payload(nbytes, seed)["data"]))


class Peer:
    """A process that holds one end of an edge. Use as a context manager: it is killed at the end.

    Args:
        target: Target of the Connector subclass.
        options: Its options; plain values only.
        edge: The end that the process holds.
        wrapper: A command that runs the process, such as `["unshare", "--mount"]`.
        start_s: Deadline for the process to be ready.
    """

    def __init__(
        self,
        target: str,
        options: Mapping[str, Any],
        edge: ConnectorEdge,
        *,
        wrapper: tuple[str, ...] = (),
        start_s: float = 60.0,
    ) -> None:
        task = json.dumps({"target": target, "options": dict(options), "edge": asdict(edge)})
        command = [*wrapper, sys.executable, "-m", "omni_core.testing.connector_peer", task]
        # The target may be importable by what a test has put on the path only.
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=paths)
        self.pid = self._process.pid
        self._read(start_s)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def call(self, action: str, wait_s: float = 60.0, **values: Any) -> dict[str, Any]:
        """Have the process do something and return its answer; `error` holds the class name of what it raised.

        Actions: `put` (request_id, nbytes, seed, timeout_s) -> handle, `get` (handle, nbytes, seed) -> same, `cleanup`
        (request_id), `health`, `close`, `listdir` (path) -> names.
        """
        self.tell(action, **values)
        return self._read(wait_s)

    def tell(self, action: str, **values: Any) -> None:
        """Have the process do something without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"action": action, **values}).encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """End the process by SIGKILL and wait until it is gone."""
        self._process.kill()
        self._process.wait(30)

    def _read(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        assert ready, f"the peer gave no answer within {timeout_s:g} s"
        line = self._process.stdout.readline()
        assert line, "the peer ended"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def _act(connector: Connector, action: str, values: dict[str, Any]) -> dict[str, Any]:
    if action == "put":
        payload = make_payload(values["nbytes"], values["seed"])
        handle = connector.put(values["request_id"], values.get("sequence", 0), payload, values.get("timeout_s", 30.0))
        return {"handle": handle.hex()}
    if action == "get":
        payload = connector.get(bytes.fromhex(values["handle"]), values.get("timeout_s", 30.0))
        return {"same": is_payload(payload, values["nbytes"], values["seed"])}
    if action == "cleanup":
        connector.cleanup(values["request_id"])
        return {}
    if action == "health":
        return dict(connector.health())
    if action == "listdir":
        return {"names": sorted(os.listdir(values["path"]))}
    assert action == "close"
    connector.close()
    return {}


def _main(task: dict[str, Any]) -> None:
    edge = ConnectorEdge(**{**task["edge"], "role": Role(task["edge"]["role"])})
    connector = make_connector(task["target"], task["options"], edge)
    _answer({})
    for line in sys.stdin:
        values = json.loads(line)
        started = time.monotonic()
        try:
            answer = _act(connector, values.pop("action"), values)
        except OmniError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        _answer({**answer, "took_s": time.monotonic() - started})


def _answer(values: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
