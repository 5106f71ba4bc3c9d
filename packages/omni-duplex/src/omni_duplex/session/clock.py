"""The clock of a session, so that tests can turn it by hand (`omni_duplex.testing.VirtualClock`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Handle(Protocol):
    """Something that will happen and can be called off."""

    def cancel(self) -> None:
        """Call it off."""
        ...


class Clock(Protocol):
    """Seconds that only go up, and calls at a time."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def call_at(self, when: float, call: Callable[[], None]) -> Handle:
        """Call something at a time."""
        ...


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, call: Callable[[], None]) -> Handle:
        """Call something at a time of the loop."""
        return asyncio.get_running_loop().call_at(when, call)
