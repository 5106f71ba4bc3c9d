"""Waiting for something to become true, with a deadline; for tests of what other processes do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import psutil

PAUSE_S = 0.01


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Wait until `condition` holds.

    Raises:
        AssertionError: It did not within `timeout_s`; the message says `what` was awaited.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(PAUSE_S)


async def async_wait_until(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Wait until `condition` holds, while the loop goes on; raises as `wait_until`."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(PAUSE_S)


def all_gone(processes: Iterable[psutil.Process]) -> bool:
    """Return whether none of the processes runs any more. One that nobody has reaped yet has ended, too."""
    return not any(_runs(process) for process in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
