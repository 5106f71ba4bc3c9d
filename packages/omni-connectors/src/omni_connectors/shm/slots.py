"""Which parts of an arena are taken: a first-fit allocator over a range of bytes."""

from __future__ import annotations

from bisect import bisect_left

ALIGN = 64
"""Slots begin and end at multiples of this many bytes, so that no two share a cache line."""


class SlotAllocator:
    """Hand out and take back parts of `[0, size)`. Not safe for threads: its owner holds a lock."""

    def __init__(self, size: int) -> None:
        assert size > 0
        assert size % ALIGN == 0
        self.size = size
        self._holes = [(0, size)]
        self._taken: dict[int, int] = {}

    def take(self, nbytes: int) -> int | None:
        """Return the offset of the first free part that holds `nbytes`, or None."""
        assert nbytes > 0
        length = -(-nbytes // ALIGN) * ALIGN
        for index, (offset, free) in enumerate(self._holes):
            if free >= length:
                if free == length:
                    del self._holes[index]
                else:
                    self._holes[index] = (offset + length, free - length)
                self._taken[offset] = length
                return offset
        return None

    def give_back(self, offset: int) -> None:
        """Make the part that was taken at `offset` free again and join it with its neighbours."""
        length = self._taken.pop(offset)
        index = bisect_left(self._holes, (offset, 0))
        if index < len(self._holes) and self._holes[index][0] == offset + length:
            length += self._holes.pop(index)[1]
        if index > 0 and sum(self._holes[index - 1]) == offset:
            index -= 1
            offset, before = self._holes.pop(index)
            length += before
        self._holes.insert(index, (offset, length))

    @property
    def taken_bytes(self) -> int:
        """How many bytes are taken."""
        return sum(self._taken.values())

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """Every free part as (offset, length), in order."""
        return tuple(self._holes)
