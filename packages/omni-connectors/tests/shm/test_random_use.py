"""Random use: whatever the order of puts, gets and cleanups, each payload arrives once and whole, and all room comes back."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from omni_connectors.shm import SharedMemoryConnector, sender
from omni_core.connector import ConnectorError, ConnectorFull, PayloadNotReady, Role
from omni_core.testing.connector_ends import wait_for
from omni_core.testing.connector_peer import is_payload, make_edge, make_payload

SIZES = (0, 1, 500, 3000, 15_000, 30_000, 60_000)
REQUESTS = 5


@pytest.fixture
def ends(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SharedMemoryConnector, SharedMemoryConnector]]:
    monkeypatch.setattr(sender, "ARENA_BYTES", 1 << 16)
    monkeypatch.setattr(sender, "SLOT_LIMIT_BYTES", 1 << 14)
    monkeypatch.setattr(sender, "LARGE_CAP_BYTES", 1 << 18)
    monkeypatch.setattr(sender, "ARENA_WAIT_S", 0.0)
    made = [SharedMemoryConnector(make_edge(run_dir, role), {}) for role in (Role.SENDER, Role.RECEIVER)]
    yield made[0], made[1]
    for end in made:
        end.close()


def assert_empty(sending: SharedMemoryConnector) -> None:
    names = ("in_flight", "bytes_in_flight", "outside_bytes", "arena_taken_bytes", "in_use_by_receivers")
    wait_for(lambda: not any(sending.health()[name] for name in names), "everything to be freed")


@pytest.mark.parametrize("seed", range(5))
def test_one_thread_sees_exactly_what_a_model_predicts(ends: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody takes anything in the moment of a cleanup here, and the model knows no grace.
    monkeypatch.setattr(sender, "GRACE_S", -1.0)
    sending, receiving = ends
    choose = random.Random(seed)
    there: dict[bytes, tuple[str, int, int]] = {}
    gone: list[bytes] = []

    for step in range(600):
        action = choose.choices(["put", "get", "get again", "cleanup"], [10, 8, 2, 1])[0]
        if action == "put":
            request, nbytes = f"r{choose.randrange(REQUESTS)}", choose.choice(SIZES)
            try:
                there[sending.put(request, step, make_payload(nbytes, step), 0.0)] = (request, nbytes, step)
            except ConnectorFull:
                assert sum(nbytes for _, nbytes, _ in there.values()) > 1 << 17
        elif action == "get" and there:
            handle = choose.choice(list(there))
            _, nbytes, made = there.pop(handle)
            gone.append(handle)
            assert is_payload(receiving.get(handle, 30.0), nbytes, made)
        elif action == "get again" and gone:
            with pytest.raises(PayloadNotReady):
                receiving.get(choose.choice(gone), 30.0)
        elif action == "cleanup":
            request = f"r{choose.randrange(REQUESTS)}"
            sending.cleanup(request)
            gone += [handle for handle, fact in there.items() if fact[0] == request]
            there = {handle: fact for handle, fact in there.items() if fact[0] != request}
    for request_number in range(REQUESTS):
        sending.cleanup(f"r{request_number}")

    assert_empty(sending)


@pytest.mark.parametrize("seed", range(3))
def test_three_threads_never_mix_payloads(ends: Any, seed: int) -> None:
    """A cleanup may come at any moment; what does arrive is right."""
    sending, receiving = ends
    handles: Queue[tuple[bytes, int, int] | None] = Queue()
    errors: list[Exception] = []
    arrived: list[int] = []
    stop = threading.Event()

    def fetch() -> None:
        try:
            while (item := handles.get(timeout=60)) is not None:
                handle, nbytes, made = item
                try:
                    payload = receiving.get(handle, 30.0)
                except PayloadNotReady:
                    continue
                assert is_payload(payload, nbytes, made)
                arrived.append(made)
        except Exception as error:  # noqa: BLE001 - the test looks at it below
            errors.append(error)

    def clean() -> None:
        choose = random.Random(seed)
        try:
            while not stop.is_set():
                sending.cleanup(f"r{choose.randrange(REQUESTS)}")
                stop.wait(0.002)
        except Exception as error:  # noqa: BLE001 - the test looks at it below
            errors.append(error)

    threads = [threading.Thread(target=target, daemon=True) for target in (fetch, clean)]
    for thread in threads:
        thread.start()
    choose = random.Random(seed)
    try:
        for step in range(1000):
            nbytes = choose.choice(SIZES)
            handle = sending.put(f"r{choose.randrange(REQUESTS)}", step, make_payload(nbytes, step), 30.0)
            handles.put((handle, nbytes, step))
    except ConnectorError as error:
        errors.append(error)
    handles.put(None)
    threads[0].join(60)
    stop.set()
    threads[1].join(60)

    assert not errors
    assert arrived == sorted(set(arrived))
    assert arrived
    for request_number in range(REQUESTS):
        sending.cleanup(f"r{request_number}")
    assert_empty(sending)
