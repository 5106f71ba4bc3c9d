"""Run `omni serve` in tests, as a user would: a real process, found by the line it prints when it is ready."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

READY = "Listening on "


@dataclass
class RunningServer:
    """A server that accepts requests."""

    url: str
    """`http://HOST:PORT`."""
    process: subprocess.Popen[str]
    log: Path
    """File with the server's standard error."""

    def stop(self, timeout_s: float = 60.0) -> int:
        """Send SIGTERM and return the exit code; kill the server after `timeout_s` seconds."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise


@contextlib.contextmanager
def serve(
    model: str | Path, *arguments: str, log: Path, timeout_s: float = 180.0, env: dict[str, str] | None = None
) -> Iterator[RunningServer]:
    """Start `omni serve MODEL --port 0 ARGUMENTS` and yield it when it is ready; stop it at the end.

    Raises:
        RuntimeError: The server ended or was not ready in `timeout_s` seconds; the message carries the end of its log.
    """
    command = [sys.executable, "-m", "omni_core", "serve", str(model), "--host", "127.0.0.1", "--port", "0", *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **(env or {})})
    server = RunningServer("", process, log)
    try:
        server.url = _wait_for_ready(process, log, timeout_s, command)
        yield server
    finally:
        try:
            server.stop()
        finally:
            assert process.stdout is not None
            process.stdout.close()


def _wait_for_ready(process: subprocess.Popen[str], log: Path, timeout_s: float, command: Sequence[str]) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(min(left, 1.0)):
                if process.poll() is not None:
                    break
                continue
            line = process.stdout.readline()
            if line.startswith(READY):
                return line.removeprefix(READY).strip()
            if not line:
                break
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
    raise RuntimeError(f"{' '.join(command)} was not ready in {timeout_s} s (exit code {process.poll()}):\n{tail}")
