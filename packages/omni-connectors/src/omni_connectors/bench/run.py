"""Start the processes of every way and let them work in turns, so that what the machine does meanwhile meets all of them."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from omni_connectors.bench.ways import MEMCPY, Way, new_folder
from omni_core.connector import Role
from omni_core.errors import DeadlineError, OmniError

START_S = 120.0
TURN_S = 300.0
END_S = 10.0
WARM_UP = 3
FEWEST, MOST = 4, 400
"""Payloads in a turn."""
WINDOW, WINDOW_BYTES = 8, 64 * 2**20
"""Payloads under way in a stream; fewer of large ones, but two at least."""


@dataclass
class Samples:
    """What was measured of one way and one size."""

    way: str
    nbytes: int
    took_ns: list[int] = field(default_factory=list)
    put_ns: list[int] = field(default_factory=list)
    cpu_ns: int = 0
    stream_ns: int = 0
    """What all payloads took that were sent with several under way."""
    streamed: int = 0
    """How many those were."""


class Pair:
    """The two processes of a way; memcpy has one."""

    def __init__(self, way: Way, folder: str) -> None:
        self.way = way
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._begin(folder)
        except BaseException:  # a pair of which one side does not start leaves no other; raised again
            self.close()
            raise

    def _begin(self, folder: str) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            self._sender = self._start(Role.SENDER, folder, here)
            self._wait_for(self._sender, START_S)
            if self.way.name != MEMCPY:
                self._wait_for(self._start(Role.RECEIVER, folder, there), START_S)

    def _start(self, role: Role, folder: str, link: socket.socket) -> subprocess.Popen[bytes]:
        task = {"way": asdict(self.way), "role": role, "folder": folder, "fd": link.fileno()}
        process = subprocess.Popen(
            [sys.executable, "-m", "omni_connectors.bench.end", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[link.fileno()],
        )
        self._processes.append(process)
        return process

    def _wait_for(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        if not ready:
            raise DeadlineError(f"{self.way.name} did not answer within {timeout_s:g} s")
        line = process.stdout.readline()
        if not line:
            raise OmniError(f"a process of {self.way.name} ended", hint="its last words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def turn(self, nbytes: int, count: int, window: int = 1) -> dict[str, Any]:
        """Send payloads, `window` of them under way at a time, and return what the sender measured."""
        assert self._sender.stdin is not None
        self._sender.stdin.write(json.dumps({"nbytes": nbytes, "count": count, "window": window}).encode() + b"\n")
        self._sender.stdin.flush()
        return self._wait_for(self._sender, TURN_S)

    def close(self) -> None:
        """End both processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_S)
            assert process.stdout is not None
            process.stdout.close()


@contextlib.contextmanager
def _pairs(ways: Sequence[Way]) -> Iterator[list[Pair]]:
    with tempfile.TemporaryDirectory(prefix="ob-") as parent, contextlib.ExitStack() as stack:
        pairs = []
        for way in ways:
            pair = Pair(way, new_folder(parent))
            stack.callback(pair.close)
            pairs.append(pair)
        yield pairs


def measure(
    ways: Sequence[Way], sizes: Sequence[int], seconds: float, rounds: int, tell: Callable[[str], None]
) -> list[Samples]:
    """Measure every way with every size.

    Args:
        ways: The ways; memcpy among them, if ratios are wanted.
        sizes: Bytes of the payloads.
        seconds: About how long each way works on each size, payload by payload; sending them as a stream comes on top.
        rounds: In how many turns.
        tell: Called with a line for each size.

    Raises:
        OmniError: A process ended or did not answer.
    """
    found: list[Samples] = []
    with _pairs(ways) as pairs:
        for nbytes in sizes:
            cells = [Samples(pair.way.name, nbytes) for pair in pairs]
            window = max(2, min(WINDOW, WINDOW_BYTES // nbytes))
            counts = [_count(pair.turn(nbytes, WARM_UP), seconds / rounds) for pair in pairs]
            for _ in range(rounds):
                for pair, cell, count in zip(pairs, cells, counts, strict=True):
                    answer = pair.turn(nbytes, count)
                    cell.took_ns += answer["took_ns"]
                    cell.put_ns += answer["put_ns"]
                    cell.cpu_ns += answer["cpu_ns"]
                    cell.stream_ns += pair.turn(nbytes, count, window)["all_ns"]
                    cell.streamed += count
            found += cells
            tell(f"{nbytes} bytes: {sum(len(cell.took_ns) for cell in cells)} payloads")
    return found


def _count(warm_up: dict[str, Any], seconds: float) -> int:
    each_s = max(1, min(warm_up["took_ns"])) / 1e9
    return max(FEWEST, min(MOST, int(seconds / each_s)))
