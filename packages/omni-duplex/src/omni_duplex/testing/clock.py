"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count


@dataclass(order=True)
class _Alarm:
    when: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """Seconds that only `advance` adds."""

    def __init__(self) -> None:
        self._now = 0.0
        self._alarms: list[_Alarm] = []
        self._numbers = count()

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> _Alarm:
        """Call something when the time is there; what is due already, with the next `advance`."""
        alarm = _Alarm(when, next(self._numbers), call)
        heapq.heappush(self._alarms, alarm)
        return alarm

    def advance(self, seconds: float) -> None:
        """Let time pass and call what becomes due, in order, each at its own time."""
        end = self._now + seconds
        while self._alarms and self._alarms[0].when <= end:
            alarm = heapq.heappop(self._alarms)
            if alarm.cancelled:
                continue
            self._now = max(self._now, alarm.when)
            alarm.call()
        self._now = end
