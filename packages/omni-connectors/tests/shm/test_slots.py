"""Slots never overlap, and freed room is whole again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_connectors.shm.slots import ALIGN, SlotAllocator

STEPS = st.lists(st.one_of(st.integers(1, 1000), st.integers(-8, -1)), max_size=80)
"""A positive number takes so many bytes; a negative one gives back the slot at that index of those taken."""


@given(STEPS)
def test_slots_never_overlap_and_everything_comes_back(steps: list[int]) -> None:
    slots = SlotAllocator(4096)
    taken: list[tuple[int, int]] = []

    for step in steps:
        if step > 0:
            offset = slots.take(step)
            if offset is None:
                assert all(length < step for _, length in slots.holes)
                continue
            assert offset % ALIGN == 0
            assert all(offset + step <= start or end <= offset for start, end in taken)
            taken.append((offset, offset + step))
        elif len(taken) >= -step:
            slots.give_back(taken.pop(step)[0])
        free = sum(length for _, length in slots.holes)
        assert free + slots.taken_bytes == 4096
        ends = [offset + length for offset, length in slots.holes]
        assert all(end < offset for end, (offset, _) in zip(ends, slots.holes[1:], strict=False))
    for offset, _ in taken:
        slots.give_back(offset)

    assert slots.holes == ((0, 4096),)


def test_the_first_hole_that_fits_is_taken() -> None:
    slots = SlotAllocator(1024)
    offsets = [slots.take(128) for _ in range(8)]
    assert offsets == [i * 128 for i in range(8)]
    for offset in (128, 512, 640):
        slots.give_back(offset)

    assert slots.take(200) == 512
    assert slots.take(64) == 128
    assert slots.take(129) is None
