"""Room: what the sender does when it is short, and how waiting ends."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from omni_connectors.shm import SharedMemoryConnector, sender
from omni_core.connector import ConnectorError, ConnectorFull, PayloadNotReady, PayloadTooLarge, PeerGone, Role
from omni_core.testing.connector_ends import wait_for
from omni_core.testing.connector_peer import make_edge

LONG_S = 10_000.0
"""A wait of this length would be ended by the test's own time limit."""


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of arena, slots of up to 16 KiB, 128 KiB outside."""
    monkeypatch.setattr(sender, "ARENA_BYTES", 1 << 16)
    monkeypatch.setattr(sender, "SLOT_LIMIT_BYTES", 1 << 14)
    monkeypatch.setattr(sender, "LARGE_CAP_BYTES", 1 << 17)
    monkeypatch.setattr(sender, "ARENA_WAIT_S", 0.01)


@pytest.fixture
def ends(run_dir: str) -> Iterator[tuple[SharedMemoryConnector, SharedMemoryConnector]]:
    made = [SharedMemoryConnector(make_edge(run_dir, role), {}) for role in (Role.SENDER, Role.RECEIVER)]
    yield made[0], made[1]
    for end in made:
        end.close()


def payload(nbytes: int, fill: int = 0) -> dict[str, Any]:
    return {"x": np.full(nbytes, fill, np.uint8)}


def fill_up(connector: SharedMemoryConnector, request_id: str = "filler") -> list[bytes]:
    """Put payloads of 8 KB until nothing fits, and return their handles."""
    handles = []
    while True:
        try:
            handles.append(connector.put(request_id, len(handles), payload(8000, len(handles)), 0.0))
        except ConnectorFull:
            return handles


class Waiting:
    """A call in a thread that is expected to wait."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001 - `end` raises it again
            self.error = error

    def end(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def waits(connector: SharedMemoryConnector) -> bool:
    inner = connector._sender
    assert inner is not None
    with inner._changed:
        return any(not entry.ready for entry in inner._entries.values())


def test_a_full_arena_overflows_to_memory_outside_and_then_refuses(ends: Any) -> None:
    sending, receiving = ends

    handles = fill_up(sending)

    health = sending.health()
    assert health["arena_taken_bytes"] > 48_000
    assert 120_000 < health["outside_bytes"] <= 1 << 17
    assert health["in_flight"] == len(handles)
    for index, handle in enumerate(handles):
        assert receiving.get(handle, LONG_S)["x"].tolist() == [index] * 8000
    wait_for(lambda: sending.health()["in_flight"] == 0, "everything to be freed")
    assert sending.health()["outside_bytes"] == 0
    assert sending.health()["arena_taken_bytes"] == 0


def test_a_payload_larger_than_all_room_can_never_fit(ends: Any) -> None:
    with pytest.raises(PayloadTooLarge):
        ends[0].put("request", 0, payload(1 << 17), LONG_S)


def test_a_refused_put_leaves_nothing_behind(ends: Any) -> None:
    sending, _ = ends
    handles = fill_up(sending)

    with pytest.raises(ConnectorFull, match="not fetched"):
        sending.put("refused", 0, payload(8000), 0.0)

    assert sending.health()["in_flight"] == len(handles)
    sending.cleanup("filler")
    assert sending.health()["in_flight"] == 0
    assert sending.health()["outside_bytes"] == 0


def test_what_would_have_to_wait_is_not_tried(ends: Any) -> None:
    sending, receiving = ends
    handle = sending.try_put("request", 0, payload(1000))
    assert receiving.try_get(handle) is None, "not connected yet"
    assert receiving.get(handle, LONG_S)["x"].tolist() == payload(1000)["x"].tolist()
    inner = sending._sender

    assert sending.try_put("request", 1, payload(100_000)) is None, "larger than the arena"
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with inner._lock:
            held.set()
            free.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    assert sending.try_put("request", 2, payload(1000)) is None, "another thread has the state"
    free.set()
    holder.join()
    fill_up(sending)
    assert sending.try_put("request", 3, payload(8000)) is None, "the arena is full"
    assert sending.health()["in_flight"] == len([entry for entry in inner._entries.values() if entry.ready])
    sending.cleanup("filler")
    assert sending.try_put("request", 4, payload(10)) is not None


@pytest.mark.parametrize("nbytes", [8000, 100_000], ids=["small", "large"])
def test_a_waiting_put_goes_on_when_payloads_are_fetched(ends: Any, nbytes: int) -> None:
    sending, receiving = ends
    handles = fill_up(sending)
    put = Waiting(lambda: sending.put("request", 0, payload(nbytes, 9), LONG_S))
    wait_for(lambda: waits(sending), "the put to wait")

    for handle in handles:
        receiving.get(handle, LONG_S)

    assert receiving.get(put.end(), LONG_S)["x"].tolist() == [9] * nbytes


def test_a_waiting_put_goes_on_when_a_request_is_cleaned_up(ends: Any) -> None:
    sending, receiving = ends
    fill_up(sending)
    put = Waiting(lambda: sending.put("request", 0, payload(8000, 9), LONG_S))
    wait_for(lambda: waits(sending), "the put to wait")

    sending.cleanup("filler")

    assert receiving.get(put.end(), LONG_S)["x"][0] == 9


def test_cleanup_of_its_own_request_ends_a_waiting_put(ends: Any) -> None:
    sending, receiving = ends
    handles = fill_up(sending)
    put = Waiting(lambda: sending.put("request", 0, payload(8000), LONG_S))
    wait_for(lambda: waits(sending), "the put to wait")

    sending.cleanup("request")

    with pytest.raises(PayloadNotReady):
        receiving.get(put.end(), LONG_S)
    assert sending.health()["in_flight"] == len(handles)


def test_cleanup_while_a_payload_is_written_outside_frees_it(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, receiving = ends
    create = sender.Area.create

    def create_and_clean(*place: Any, **how: Any) -> sender.Area:
        sending.cleanup("request")
        return create(*place, **how)

    monkeypatch.setattr(sender.Area, "create", create_and_clean)

    handle = sending.put("request", 0, payload(50_000), LONG_S)

    assert sending.health()["outside_bytes"] == 0
    with pytest.raises(PayloadNotReady):
        receiving.get(handle, LONG_S)


def test_memory_that_the_kernel_refuses_is_reported_as_full(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*place: Any, **how: Any) -> sender.Area:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sender.Area, "create", refuse)

    with pytest.raises(ConnectorFull, match="no memory"):
        ends[0].put("request", 0, payload(50_000), LONG_S)
    assert ends[0].health()["outside_bytes"] == 0
    assert ends[0].health()["in_flight"] == 0


def test_memory_outside_the_arena_is_used_again(ends: Any) -> None:
    sending, receiving = ends
    for index in range(20):
        got = receiving.get(sending.put("request", index, payload(50_000 + index, index), LONG_S), LONG_S)
        assert got["x"].tolist() == [index] * (50_000 + index)
        del got

    health = sending.health()
    assert health["outside_bytes"] == 0
    assert 50_000 < health["idle_bytes"] < 120_000
    assert len(receiving._receiver._links[0]._areas) == 2 + (health["idle_bytes"] > 60_000)


def test_memory_that_is_idle_for_long_is_given_up_at_both_ends(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, receiving = ends
    receiving.get(sending.put("request", 0, payload(50_000), LONG_S), LONG_S)
    assert sending.health()["idle_bytes"] > 0

    sending._sender._large.idle_s = 0.0

    assert sending.health()["idle_bytes"] == 0
    receiving.get(sending.put("request", 1, payload(1), LONG_S), LONG_S)
    assert len(receiving._receiver._links[0]._areas) == 1


def test_a_receiver_that_gets_nothing_more_gives_up_idle_memory_too(ends: Any) -> None:
    """A replica without requests would keep what its senders have given up long ago."""
    sending, receiving = ends
    receiving.get(sending.put("request", 0, payload(50_000), LONG_S), LONG_S)
    sending._sender._large.idle_s = 0.0
    sending.health()

    receiving.health()

    assert len(receiving._receiver._links[0]._areas) == 1


def test_memory_that_cannot_be_passed_costs_its_payload_alone(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that were dropped for it would see its other payloads change under its eyes."""
    sending, receiving = ends
    kept = receiving.get(sending.put("kept", 0, payload(70_000, 3), LONG_S), LONG_S)
    lost = sending.put("lost", 0, payload(30_000), LONG_S)

    def no_descriptor(_: int) -> int:
        raise OSError(errno.EMFILE, "no descriptor is free")

    with monkeypatch.context() as patch:
        patch.setattr(sending._sender, "memory_of", no_descriptor)
        with pytest.raises(PayloadNotReady):
            receiving.get(lost, LONG_S)
    sending.cleanup("lost")

    assert sending.health()["peers"] == 1
    assert sending.health()["in_use_by_receivers"] >= 1
    again = receiving.get(sending.put("again", 0, payload(30_000, 4), LONG_S), LONG_S)
    assert (kept["x"] == 3).all()
    assert (again["x"] == 4).all()


@pytest.mark.parametrize("nbytes", [10, 50_000], ids=["small", "large"])
def test_a_closed_end_takes_nothing(ends: Any, nbytes: int) -> None:
    sending, _ = ends
    sending.close()

    with pytest.raises(ConnectorError, match="the connector is closed"):
        sending.put("request", 0, payload(nbytes), LONG_S)
    assert sending.health()["arena_taken_bytes"] == 0


def test_idle_memory_makes_room_for_another_size(ends: Any) -> None:
    sending, receiving = ends

    for nbytes in (100_000, 20_000, 120_000, 50_000, 17_000, 120_000):
        got = receiving.get(sending.put("request", 0, payload(nbytes, 5), 1.0), LONG_S)
        assert got["x"].nbytes == nbytes
        del got


def test_a_waiting_put_ends_when_the_last_receiver_is_gone(ends: Any) -> None:
    sending, receiving = ends
    receiving.get(sending.put("request", 0, payload(1), LONG_S), LONG_S)
    fill_up(sending)
    put = Waiting(lambda: sending.put("request", 1, payload(8000), LONG_S))
    wait_for(lambda: waits(sending), "the put to wait")

    receiving.close()

    with pytest.raises(PeerGone):
        put.end()


def test_close_ends_a_waiting_put(ends: Any) -> None:
    sending, _ = ends
    fill_up(sending)
    put = Waiting(lambda: sending.put("request", 0, payload(8000), LONG_S))
    wait_for(lambda: waits(sending), "the put to wait")

    sending.close()

    with pytest.raises(ConnectorError, match="closed"):
        put.end()


def test_close_before_a_waiting_put_has_woken_ends_it_too(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, _ = ends
    fill_up(sending)
    inner = sending._sender

    def close_meanwhile(timeout_s: float) -> None:
        inner._closed = True
        inner._entries.clear()

    monkeypatch.setattr(inner._changed, "wait", close_meanwhile)

    with pytest.raises(ConnectorError, match="closed"):
        sending.put("request", 0, payload(8000), LONG_S)


def test_a_lost_message_does_not_lose_room(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark in the slot is what counts; the message only wakes the sender."""
    sending, receiving = ends
    receiving.get(sending.put("request", 0, payload(1), LONG_S), LONG_S)
    monkeypatch.setattr(sending._sender, "given_back", lambda: None)

    for index in range(50):
        receiving.get(sending.put("request", index, payload(15_000), 0.0), LONG_S)

    assert sending.health()["outside_bytes"] == 0
    assert sending.health()["in_flight"] == 0


def test_no_descriptor_is_left_after_close(run_dir: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    sending = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    receiving = SharedMemoryConnector(make_edge(run_dir, Role.RECEIVER), {})
    for nbytes in (10, 50_000):
        receiving.get(sending.put("request", 0, payload(nbytes), LONG_S), LONG_S)
        sending.put("request", 0, payload(nbytes), LONG_S)

    sending.close()
    receiving.close()

    assert set(os.listdir("/proc/self/fd")) == before
    assert os.listdir(run_dir) == []
