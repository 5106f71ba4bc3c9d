"""The memory of a sending end: the arena, and areas for large payloads, which are used again and again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from omni_connectors.shm.memory import SLOT_HEADER, Area
from omni_connectors.shm.slots import SlotAllocator

ARENA = 0
"""Number of the arena."""
MIB = 2**20


@dataclass
class _Large:
    """An area with one slot."""

    area: Area
    idle_since: float | None = None


@dataclass
class LargeAreas:
    """Areas with one slot each. Memory that was used before costs a copy; fresh memory costs three times as much."""

    cap: int
    """Limit of all their bytes."""
    idle_s: float
    """How long one is kept that nothing is in."""
    _areas: dict[int, _Large] = field(default_factory=dict)
    _next: int = ARENA + 1
    _bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of all areas, and of those that are being made."""
        return self._bytes

    @property
    def idle_bytes(self) -> int:
        """Bytes of areas that nothing is in."""
        return sum(large.area.size for large in self._areas.values() if large.idle_since is not None)

    def take_idle(self, nbytes: int) -> int | None:
        """Return the number of an idle area that fits a payload without much waste, now in use, or None."""
        fits = [
            (large.area.size, number)
            for number, large in self._areas.items()
            if large.idle_since is not None and nbytes <= large.area.size - SLOT_HEADER <= 2 * nbytes
        ]
        if not fits:
            return None
        _, number = min(fits)
        self._areas[number].idle_since = None
        return number

    def reserve(self, nbytes: int) -> tuple[int, list[int]] | None:
        """Reserve room for a new area.

        Returns:
            Its bytes, and numbers of idle areas that were given up for it; None if there is no room.
        """
        size = -(-(SLOT_HEADER + nbytes) // MIB) * MIB if nbytes >= MIB else -(-(SLOT_HEADER + nbytes) // 64) * 64
        size = min(size, max(self.cap, SLOT_HEADER + nbytes))
        if self._bytes - self.idle_bytes + size > self.cap + SLOT_HEADER:
            return None
        dropped = []
        while self._bytes + size > self.cap + SLOT_HEADER:
            dropped.append(min((large.idle_since, number) for number, large in self._areas.items() if large.idle_since)[1])
            self._drop(dropped[-1])
        self._bytes += size
        return size, dropped

    def add(self, area: Area) -> int:
        """Add an area for which room was reserved; it is in use. Return its number."""
        number, self._next = self._next, self._next + 1
        self._areas[number] = _Large(area)
        return number

    def unreserve(self, size: int) -> None:
        """Give up what was reserved."""
        self._bytes -= size

    def get(self, number: int) -> Area | None:
        """Return an area."""
        large = self._areas.get(number)
        return None if large is None else large.area

    def give_back(self, number: int) -> None:
        """Note that nothing is in an area any more."""
        self._areas[number].idle_since = time.monotonic()

    def drop_old(self) -> list[int]:
        """Give up areas that were idle for long, and return their numbers."""
        limit = time.monotonic() - self.idle_s
        old = [number for number, large in self._areas.items() if large.idle_since is not None and large.idle_since < limit]
        for number in old:
            self._drop(number)
        return old

    def _drop(self, number: int) -> None:
        area = self._areas.pop(number).area
        self._bytes -= area.size
        area.close()

    def close(self) -> None:
        """Give up all areas."""
        for number in list(self._areas):
            self._drop(number)


class Arena:
    """The area for payloads that share one: it is there from the start, and all its memory with it."""

    def __init__(self, nbytes: int) -> None:
        self.area = Area.create(nbytes)
        self.slots = SlotAllocator(nbytes)

    def close(self) -> None:
        """Give the memory up."""
        self.area.close()
