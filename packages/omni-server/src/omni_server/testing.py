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

from omni_core.testing.waiting import wait_until

READY = "Listening on "
ROUNDING = 2
"""Steps that other chunks or neighbours in a batch may move a 16-bit sample by; a wrong code moves it much farther."""


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

    def wait_for_free_sessions(self, timeout_s: float = 30.0) -> None:
        """Wait until no realtime session holds a slot: one gets free a moment after its client has left.

        Raises:
            AssertionError: One is held after `timeout_s` seconds.
        """
        import httpx

        def are_free() -> bool:
            answer = httpx.get(f"{self.url}/ready", timeout=timeout_s).json()
            return answer.get("sessions", {}).get("held") == 0

        wait_until(are_free, "the slots of sessions to be free", timeout_s)


def assert_same_sound(found: bytes, expected: bytes) -> None:
    """Check that two answers in 16-bit PCM are as long as each other and equal up to rounding."""
    import numpy as np

    ours, theirs = (np.frombuffer(pcm, "<i2").astype(int) for pcm in (found, expected))
    assert ours.shape == theirs.shape, f"{len(ours)} and {len(theirs)} samples"
    farthest = int(np.abs(ours - theirs).max(initial=0))
    assert farthest <= ROUNDING, f"a sample is {farthest} steps off"


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
    output = process.stdout.fileno()
    deadline = time.monotonic() + timeout_s
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(min(left, 1.0)):
                if process.poll() is not None:
                    break
                continue
            data = os.read(output, 1 << 16)  # not `readline`, which keeps what came with a line where no selector sees it
            if not data:
                break
            said += data
            for line in said.decode(errors="replace").splitlines(keepends=True):
                if line.startswith(READY) and line.endswith("\n"):
                    return line.removeprefix(READY).strip()
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
    raise RuntimeError(f"{' '.join(command)} was not ready in {timeout_s} s (exit code {process.poll()}):\n{tail}")


@dataclass
class Command:
    """A command of `omni` that runs until it is stopped or ends by itself."""

    process: subprocess.Popen[bytes]
    log: Path
    """File with its standard output and error."""

    @property
    def text(self) -> str:
        """What it has said."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout_s: float = 240.0) -> str:
        """Return the first line with `text` once it is there.

        Raises:
            AssertionError: It never came; the message has the end of the log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self.process.poll() is not None
            if (line := next((line for line in self.text.splitlines() if text in line), None)) is not None:
                return line
            if has_ended or time.monotonic() > deadline:
                raise AssertionError(f"{text!r} never came:\n{self.text[-3000:]}")
            time.sleep(0.05)

    def exit_code(self, timeout_s: float = 120.0) -> int:
        """Return its exit code once it has ended by itself."""
        return self.process.wait(timeout_s)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 60.0) -> int:
        """Send a signal and return the exit code; kill it after `timeout_s` seconds."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise


@contextlib.contextmanager
def command(
    *words: str,
    log: Path,
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
    program: Sequence[str] = ("-m", "omni_core"),
) -> Iterator[Command]:
    """Start `omni WORDS` and yield it at once; it is stopped at the end.

    Args:
        *words: The command and its arguments.
        log: File for what it says.
        env: Variables besides those of this process.
        prefix: What the command line begins with, such as that of a `network.Host`.
        program: What Python runs.
    """
    line = [*prefix, sys.executable, *program, *words]
    with log.open("wb") as file:
        process = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
    found = Command(process, log)
    try:
        yield found
    finally:
        found.stop()
