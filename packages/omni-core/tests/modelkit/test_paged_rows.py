from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine


def _rows(slots: int = 3, positions: int = 300, width: int = 4) -> Any:
    from omni_core.modelkit.paged_rows import PagedRows

    return PagedRows(slots, positions, width, torch.float32)


def _made(count: int, seed: int = 0) -> Any:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def _all(kept: Any, slot: int, count: int) -> Any:
    return kept.read(torch.full((count,), slot), torch.arange(count))


def test_rows_are_read_as_they_came_in_whatever_pieces() -> None:
    kept, first, second = _rows(), _made(200, 1), _made(90, 2)

    start = 0
    for size in (1, 63, 1, 70, 65):
        kept.write(0, start, first[start : start + size])
        kept.write(2, start, second[start : start + size])
        start += size

    assert torch.equal(_all(kept, 0, 200), first)
    assert torch.equal(_all(kept, 2, 90), second)
    mixed = kept.read(torch.tensor([2, 0, 2]), torch.tensor([89, 199, 0]))
    assert torch.equal(mixed, torch.stack([second[89], first[199], second[0]]))


def test_a_slot_that_ends_gives_its_memory_to_the_next() -> None:
    kept = _rows()
    kept.write(0, 0, _made(300))
    size = len(kept.pool)

    for slot in (1, 2, 0):
        kept.end((slot - 1) % 3)
        kept.write(slot, 0, _made(300, slot))
        assert torch.equal(_all(kept, slot, 300), _made(300, slot))

    assert len(kept.pool) == size


def test_memory_grows_with_what_arrives_and_not_with_what_could() -> None:
    kept = _rows(slots=64, positions=100_000)

    kept.write(5, 0, _made(10))

    assert kept.pool.numel() < 1000


def test_what_has_not_arrived_reads_as_zero_after_the_slot_was_used() -> None:
    kept = _rows()
    kept.write(1, 0, _made(10))

    kept.end(1)

    assert not _all(kept, 1, 10).any()


def test_rows_past_the_last_position_are_dropped() -> None:
    kept = _rows(positions=70)

    kept.write(0, 60, _made(20))
    kept.write(0, 80, _made(5))

    assert torch.equal(kept.read(torch.zeros(10, dtype=torch.int64), torch.arange(60, 70)), _made(20)[:10])
