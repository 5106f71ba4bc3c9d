"""Admission: requests begin at once while the entry stages have room, and otherwise wait in the order in which they came."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

from omni_core.engine.flight import Flight
from omni_core.engine.options import EngineOptions
from omni_core.engine.replicas import ReplicaPool
from omni_core.errors import OmniError, OverloadedError

MAX_RETRY_AFTER_S = 60.0
_WEIGHT = 0.2
"""How much the newest departure counts in the average of their distances."""


class Admission:
    """Let requests begin.

    Args:
        pools: The stages' replicas, by stage id.
        options: The limits.
        begin: Called once for a request that may run. Afterwards it has its places in the entry stages, or has ended.
        end: Called for a request that waited too long.
    """

    def __init__(
        self,
        pools: Mapping[int, ReplicaPool],
        options: EngineOptions,
        begin: Callable[[Flight], None],
        end: Callable[[Flight, OmniError], None],
    ) -> None:
        self._pools = pools
        self._options = options
        self._begin = begin
        self._end = end
        self._waiting: dict[str, Flight] = {}
        self._left_at: float | None = None
        self._pace_s = 1.0
        self._is_letting_in = False

    @property
    def queued(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def enter(self, flight: Flight) -> None:
        """Let a request begin now, or remember it.

        Raises:
            OverloadedError: Too many wait already.
        """
        if not self._waiting and self._has_room(flight):
            self._begin(flight)
            return
        if len(self._waiting) >= self._options.max_queued_requests:
            raise self._overloaded(f"{len(self._waiting)} requests wait already")
        self._waiting[flight.id] = flight
        if (limit := self._options.max_queue_time_s) is not None:
            flight.set_timer("queue", asyncio.get_running_loop().call_later(limit, self._give_up, flight, limit))

    def leave(self, flight: Flight) -> None:
        """Forget a request that has ended; others may begin."""
        if self._waiting.pop(flight.id, None) is None and flight.is_running:
            now = asyncio.get_running_loop().time()
            if self._left_at is not None:
                self._pace_s += _WEIGHT * (now - self._left_at - self._pace_s)
            self._left_at = now
        self.let_in()

    def let_in(self) -> None:
        """Let those begin for whom there is room; called whenever there may be more."""
        if self._is_letting_in:
            # One of them ended in its begin, and the loop below goes on with the next.
            return
        self._is_letting_in = True
        try:
            while self._waiting and self._has_room(flight := next(iter(self._waiting.values()))):
                del self._waiting[flight.id]
                flight.stop_timer("queue")
                self._begin(flight)
        finally:
            self._is_letting_in = False

    def _has_room(self, flight: Flight) -> bool:
        return all(self._pools[stage_id].has_room for stage_id in flight.entries)

    def _give_up(self, flight: Flight, limit: float) -> None:
        self._end(flight, self._overloaded(f"the request waited {limit:g} s for room"))

    def _overloaded(self, why: str) -> OverloadedError:
        seconds = min(MAX_RETRY_AFTER_S, max(1.0, self._pace_s * (len(self._waiting) + 1)))
        return OverloadedError(f"the server is busy: {why}", hint="try again later", retry_after_s=math.ceil(seconds))
