"""The watch that lets no process outlive its parents: a thread that kills its own process when a watched one is gone.

Runs in every process below the server: the fork server while it loads, stage hosts and engine cores. It needs no cooperation of
the event loop or of the code that happens to run, so it works while a model loads, too.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

WATCH_ENV = "OMNI_WATCH_PIDS"
"""`pid` or `pid:start`, separated by commas: whom the children of a stage host must not outlive."""
RUN_DIR_ENV = "OMNI_RUN_DIR"
CLEAN_UP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Watched:
    """One process, told apart from a later one with the same number by its start time."""

    pid: int
    start: int | None = None
    """Clock ticks since boot, from /proc; None skips the check."""

    @classmethod
    def of(cls, pid: int) -> Watched:
        """Return the process that has this number now."""
        return cls(pid, start_time(pid))

    def __str__(self) -> str:
        return str(self.pid) if self.start is None else f"{self.pid}:{self.start}"

    def open(self) -> int | None:
        """Return a pidfd, or None if the process is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # Once the descriptor is open the number can no longer change hands, so the check comes after it.
        if self.start is not None and start_time(self.pid) != self.start:
            os.close(fd)
            return None
        return fd


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces; field 22 counts from after it.
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def format_watched(processes: Iterable[Watched]) -> str:
    """Return processes as the value of OMNI_WATCH_PIDS."""
    return ",".join(map(str, processes))


def parse_watched(text: str) -> tuple[Watched, ...]:
    """Return the processes named by a value of OMNI_WATCH_PIDS."""
    found = []
    for part in filter(None, text.split(",")):
        pid, _, start = part.partition(":")
        found.append(Watched(int(pid), int(start) if start else None))
    return tuple(found)


def watch_from_environment() -> Watch | None:
    """Watch what the environment names; for processes that a stage host starts through others, such as engine cores."""
    processes = parse_watched(os.environ.get(WATCH_ENV, ""))
    return watch_process(processes, os.environ.get(RUN_DIR_ENV)) if processes else None


def watch_process(processes: Sequence[Watched], run_dir: str | None = None) -> Watch:
    """Kill this process when one of `processes` is gone, and remove `run_dir` if it was the first of them, the server."""
    return Watch(processes, functools.partial(shutil.rmtree, run_dir, ignore_errors=True) if run_dir else None)


class Watch:
    """A thread on pidfds. Processes that are gone already end this one at once.

    Args:
        processes: Whom not to outlive; the first is the server.
        clean_up: What to do before the end if the server is gone.
    """

    def __init__(self, processes: Sequence[Watched], clean_up: Callable[[], object] | None = None) -> None:
        self._clean_up = clean_up
        self._fds: list[int] = []
        for process in processes:
            fd = process.open()
            if fd is None:
                _die(clean_up if process is processes[0] else None)
            self._fds.append(fd)
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._wait, name="omni-watch", daemon=True)
        self._thread.start()

    def give_way(self, timeout_s: float) -> None:
        """Let the watch end this process if a watched one is gone or goes within `timeout_s`; otherwise return.

        For a process that is about to end for another reason: the watch's clean-up would be cut off by its exit.
        """
        if self._gone(timeout_s):
            self._thread.join(CLEAN_UP_TIMEOUT_S)

    def stop(self) -> None:
        """End the watch and its thread."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        for fd in (*self._fds, self._wake_read, self._wake_write):
            os.close(fd)

    def _wait(self) -> None:
        gone = self._gone()
        if gone:
            _die(self._clean_up if self._fds[0] in gone else None)

    def _gone(self, timeout_s: float | None = None) -> list[int]:
        """Wait until a watched process is gone or the watch is stopped, and return the descriptors of those that are gone."""
        poll = select.poll()
        for fd in (self._wake_read, *self._fds):
            poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000) if fd != self._wake_read]


def _die(clean_up: Callable[[], object] | None) -> NoReturn:
    if clean_up is not None:
        clean_up()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be survived")
