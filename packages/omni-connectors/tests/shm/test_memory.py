"""Shared memory cannot shrink, and a payload is read only while it is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from omni_connectors.shm import memory
from omni_connectors.shm.memory import SLOT_HEADER, Arena, check_memory, create_memory, map_payload, write_payload
from omni_core.connector import ConnectorError, PayloadNotReady
from omni_core.payload import EncodedPayload, decode_payload


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 16)
    yield arena
    arena.close()


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


def test_memory_of_another_size_than_the_handle_says_is_refused() -> None:
    fd = create_memory("test", 4096)
    try:
        for nbytes in (4000, 5000):
            with pytest.raises(ConnectorError):
                map_payload(fd, nbytes)
    finally:
        os.close(fd)


def test_a_payload_of_its_own_memory_outlives_the_descriptor() -> None:
    payload = EncodedPayload({"x": b"y" * 100})
    fd = create_memory("test", payload.nbytes)
    write_payload(fd, payload)

    view = map_payload(fd, payload.nbytes)
    os.close(fd)

    assert decode_payload(view) == {"x": b"y" * 100}


def test_a_slot_is_read_once(arena: Arena) -> None:
    payload = EncodedPayload({"x": 1})
    arena.write(1024, 77, payload)

    assert decode_payload(arena.consume(1024, 77, payload.nbytes)) == {"x": 1}
    assert arena.consumed(1024, 77)
    with pytest.raises(PayloadNotReady):
        arena.consume(1024, 77, payload.nbytes)


def test_a_retracted_or_replaced_payload_is_not_read(arena: Arena) -> None:
    payload = EncodedPayload({"x": 1})
    arena.write(0, 5, payload)
    arena.retract(0)
    with pytest.raises(PayloadNotReady):
        arena.consume(0, 5, payload.nbytes)

    arena.write(0, 6, payload)
    with pytest.raises(PayloadNotReady):
        arena.consume(0, 5, payload.nbytes)
    assert decode_payload(arena.consume(0, 6, payload.nbytes)) == {"x": 1}


def test_a_payload_that_is_retracted_while_it_is_copied_is_not_returned(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = EncodedPayload({"x": 1})
    arena.write(0, 5, payload)
    make = memory.np.empty

    def retract_meanwhile(*args: Any) -> Any:
        arena.retract(0)
        return make(*args)

    monkeypatch.setattr(memory.np, "empty", retract_meanwhile)

    with pytest.raises(PayloadNotReady, match="while it was read"):
        arena.consume(0, 5, payload.nbytes)
    assert not arena.consumed(0, 5)


@pytest.mark.parametrize("place", [(-64, 0), (8, 64), (1 << 16, 0), (0, 1 << 16), (0, -1), (64, 2**62)], ids=str)
def test_a_slot_outside_of_the_arena_is_refused(arena: Arena, place: tuple[int, int]) -> None:
    with pytest.raises(ConnectorError, match="arena"):
        arena.consume(place[0], 0, place[1])


def test_an_arena_has_all_its_memory_from_the_start(arena: Arena) -> None:
    assert os.fstat(arena.fd).st_blocks * 512 >= 1 << 16
    assert SLOT_HEADER % 64 == 0
