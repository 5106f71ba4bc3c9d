"""Shared memory cannot shrink, and a payload is taken once, and only while it is there."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_connectors.shm import memory
from omni_connectors.shm.memory import AREA_HEADER, GIVEN_BACK, SLOT_HEADER, Area, check_memory, create_memory
from omni_core.connector import ConnectorError, PayloadNotReady
from omni_core.payload import EncodedPayload, decode_payload

CONNECTION = 3


@pytest.fixture
def area() -> Iterator[Area]:
    area = Area.create(1 << 16)
    yield area
    area.close()


def test_memory_can_neither_shrink_nor_grow() -> None:
    fd = create_memory("test", 4096)
    try:
        for size in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        assert check_memory(fd, 4096) == 4096
    finally:
        os.close(fd)


def test_memory_that_could_shrink_is_refused() -> None:
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, 4096)
        with pytest.raises(ConnectorError, match="cannot be used"):
            check_memory(fd, 4096)
    finally:
        os.close(fd)


def test_a_file_is_refused(tmp_path) -> None:
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    try:
        with pytest.raises(ConnectorError):
            check_memory(fd, 0)
    finally:
        os.close(fd)


def test_a_payload_is_taken_once(area: Area) -> None:
    payload = EncodedPayload({"x": 1})
    area.write(1024, 77, payload)
    assert area.holder(1024, 77) is None

    area.take(1024, 77, payload.nbytes, CONNECTION)

    assert decode_payload(area.view(1024, payload.nbytes).data) == {"x": 1}
    assert decode_payload(area.copy(1024, payload.nbytes)) == {"x": 1}
    assert area.holder(1024, 77) == CONNECTION
    with pytest.raises(PayloadNotReady):
        area.take(1024, 77, payload.nbytes, CONNECTION)


def test_a_payload_that_was_given_back_is_not_taken_again(area: Area) -> None:
    payload = EncodedPayload({"x": 1})
    area.write(0, 5, payload)
    area.take(0, 5, payload.nbytes, CONNECTION)

    assert area.give_back(0, 5) is False

    assert area.holder(0, 5) == GIVEN_BACK
    with pytest.raises(PayloadNotReady):
        area.take(0, 5, payload.nbytes, CONNECTION)


def test_whoever_gives_back_hears_whether_the_sender_waits(area: Area) -> None:
    area.want_news(True)

    assert area.give_back(0, 5) is True


def test_a_retracted_or_replaced_payload_is_not_taken(area: Area) -> None:
    payload = EncodedPayload({"x": 1})
    area.write(0, 5, payload)
    area.retract(0)
    with pytest.raises(PayloadNotReady):
        area.take(0, 5, payload.nbytes, CONNECTION)

    area.write(0, 6, payload)
    with pytest.raises(PayloadNotReady):
        area.take(0, 5, payload.nbytes, CONNECTION)
    area.take(0, 6, payload.nbytes, CONNECTION)
    assert decode_payload(area.copy(0, payload.nbytes)) == {"x": 1}


def test_a_payload_that_is_retracted_while_it_is_taken_is_given_back(area: Area) -> None:
    payload = EncodedPayload({"x": 1})
    area.write(0, 5, payload)
    words = area._words

    class Words:
        """Retracts as soon as the payload is marked."""

        def __getitem__(self, index: int) -> int:
            return words[index]

        def __setitem__(self, index: int, value: int) -> None:
            words[index] = value
            area_word = AREA_HEADER // 8
            words[area_word] = 0

    area._words = Words()  # type: ignore[assignment]
    try:
        with pytest.raises(PayloadNotReady, match="while it was taken"):
            area.take(0, 5, payload.nbytes, CONNECTION)
    finally:
        area._words = words

    assert area.holder(0, 5) == GIVEN_BACK


@pytest.mark.parametrize("place", [(-64, 0), (8, 64), (1 << 16, 0), (0, 1 << 16), (0, -1), (64, 2**62)], ids=str)
def test_a_slot_outside_of_the_area_is_refused(area: Area, place: tuple[int, int]) -> None:
    with pytest.raises(ConnectorError, match="area"):
        area.take(place[0], 0, place[1], CONNECTION)


def test_an_area_has_all_its_memory_from_the_start(area: Area) -> None:
    assert os.fstat(area.fd).st_blocks * 512 >= 1 << 16
    assert SLOT_HEADER % 64 == 0


@pytest.mark.parametrize("enabled", ["always within_size [advise] never", "always advise [never]", None], ids=str)
@pytest.mark.parametrize("map_now", [True, False])
def test_a_large_area_has_all_its_memory_whatever_pages_the_system_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str | None, map_now: bool
) -> None:
    if enabled is not None:
        (tmp_path / "shmem_enabled").write_text(enabled)
    monkeypatch.setattr(memory, "SHMEM_ENABLED", str(tmp_path / "shmem_enabled"))

    area = Area.create(2 * memory.HUGE_PAGE_BYTES, map_now=map_now)

    try:
        assert os.fstat(area.fd).st_blocks * 512 >= area.size
        area.write(0, 5, EncodedPayload({"x": 1}))
        assert decode_payload(area.copy(0, EncodedPayload({"x": 1}).nbytes)) == {"x": 1}
    finally:
        area.close()


class Refusing(mmap.mmap):
    """Memory of a kernel that fills no mapping, for the reason in `number`."""

    number = errno.EINVAL

    def madvise(self, option: int, *rest: int) -> None:
        if option == memory.MADV_POPULATE_WRITE:
            raise OSError(self.number, "refused")


def test_an_old_kernel_allocates_the_memory_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_huge_pages_on_advice", lambda: True)
    monkeypatch.setattr(memory.mmap, "mmap", Refusing)

    area = Area.create(2 * memory.HUGE_PAGE_BYTES)

    assert os.fstat(area.fd).st_blocks * 512 >= area.size
    area.close()


def test_memory_that_cannot_be_mapped_is_an_error_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.mmap, "mmap", Refusing)
    monkeypatch.setattr(Refusing, "number", errno.EFAULT)
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="not so much memory"):
        Area.create(2 * memory.HUGE_PAGE_BYTES, map_now=True)

    assert len(os.listdir("/proc/self/fd")) == before


def test_large_pieces_are_written_as_small_ones_are(area: Area) -> None:
    payload = EncodedPayload({"x": b"s" * 10, "y": [bytes(3)]})
    big = EncodedPayload({"y": memory_of_bytes(1 << 15), "z": b"q"})

    for number, item in enumerate((payload, big)):
        area.write(0, 10 + number, item)
        area.take(0, 10 + number, item.nbytes, CONNECTION)
        found = decode_payload(area.view(0, item.nbytes).data)
        assert found.keys() <= {"x", "y", "z"}
        assert bytes(area._bytes[AREA_HEADER + SLOT_HEADER :][: item.nbytes]) == item.to_bytes()


def memory_of_bytes(nbytes: int) -> object:
    import numpy as np

    return np.arange(nbytes, dtype=np.uint16)[: nbytes // 2].view(np.uint8)


def test_memory_that_is_viewed_outlives_the_area() -> None:
    area = Area.create(1 << 12)
    payload = EncodedPayload({"x": b"y" * 100})
    area.write(0, 1, payload)
    view = area.view(0, payload.nbytes)

    area.close()
    area.close()

    assert decode_payload(view.data) == {"x": b"y" * 100}
