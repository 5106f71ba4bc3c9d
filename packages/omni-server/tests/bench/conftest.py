"""Fixtures of the benchmark's tests: servers on a fake engine, as processes, and exchanges as the wire would give them."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from omni_server.bench.exchange import Exchange
from omni_server.bench.plan import Job

SERVER = """
import argparse, sys
from omni_server.fake_engine import FakeEngine
from omni_server.serve import ServeCommand

parser = argparse.ArgumentParser("omni serve")
command = ServeCommand(lambda args: FakeEngine())
command.configure(parser)
sys.exit(command.run(parser.parse_args()))
"""
PATIENCE_S = 60.0


class FakeServer:
    """A server process with a fake engine."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        command = [sys.executable, "-c", SERVER, "org/fake-tts", "--port", "0", *arguments]
        with log.open("w") as errors:
            env = os.environ | {"PYTHONUNBUFFERED": "1"}
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(PATIENCE_S) else ""
        self.url = line.removeprefix("Listening on ").strip()

    def began(self) -> int:
        """Return how many requests have begun."""
        return self.log.read_text().count("] began ")

    def wait_for_began(self, count: int) -> None:
        """Wait until this many requests have begun."""
        end = time.monotonic() + PATIENCE_S
        while self.began() < count:
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeServer, FakeServer]]:
    """Two servers."""
    folder = tmp_path_factory.mktemp("servers")
    started = []
    try:
        for name in "ab":
            started.append(FakeServer(folder / f"{name}.log"))
            assert started[-1].url.startswith("http://"), started[-1].log.read_text()
        yield started[0], started[1]
    finally:
        for server in started:
            server.close()


@pytest.fixture
def make_exchange() -> Callable[..., Exchange]:
    """Make an exchange that was due at 10 s, from the pieces of its body."""

    def make(pieces: Sequence[tuple[float, bytes]], form: str = "pcm", **changes: Any) -> Exchange:
        job = Job(0, 0, 0, {"input": "hello", "response_format": form})
        end = max((time for time, _ in pieces), default=10.0)
        values = {"sent": 10.0, "status": 200, "headers": {}, "pieces": list(pieces), "end": end, **changes}
        return Exchange(job, 10.0, **values)

    return make
