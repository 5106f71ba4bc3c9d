"""Ends of connections: who may be at the other end, and what a receiver does when nobody is."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omni_connectors.shm import SharedMemoryConnector, wire
from omni_core.connector import ConnectorError, PayloadNotReady, PeerGone, Role
from omni_core.testing.connector_ends import wait_for
from omni_core.testing.connector_peer import is_payload, make_edge, make_payload

LONG_S = 10_000.0
LARGE = 20_000_000


@pytest.fixture
def receiver(run_dir: str) -> Iterator[SharedMemoryConnector]:
    connector = SharedMemoryConnector(make_edge(run_dir, Role.RECEIVER), {})
    yield connector
    connector.close()


@pytest.fixture
def sender(run_dir: str) -> Iterator[SharedMemoryConnector]:
    connector = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    yield connector
    connector.close()


@pytest.fixture
def mute(run_dir: str) -> Iterator[socket.socket]:
    """A sender that accepts nobody."""
    with wire.new_socket() as server, wire.socket_address(make_edge(run_dir, Role.SENDER), 0) as address:
        server.bind(address)
        server.listen(1)
        yield server


def handle(area: int = 7) -> bytes:
    return msgspec.msgpack.encode(wire.Handle(0, 5, 64, area, 0))


def test_nobody_there_is_reported_at_once(receiver: SharedMemoryConnector) -> None:
    with pytest.raises(PeerGone):
        receiver.get(handle(), LONG_S)


@pytest.mark.parametrize("nbytes", [5000, LARGE], ids=["small", "large"])
def test_a_sender_that_closed_is_reported_at_once(run_dir: str, receiver: SharedMemoryConnector, nbytes: int) -> None:
    sender = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    receiver.get(sender.put("request", 0, make_payload(nbytes, 1), LONG_S), LONG_S)
    second = sender.put("request", 1, make_payload(nbytes, 1), LONG_S)

    sender.close()

    with pytest.raises(PeerGone):
        receiver.get(second, LONG_S)


def test_a_sender_that_takes_the_place_of_a_dead_one_is_found(run_dir: str, receiver: SharedMemoryConnector) -> None:
    first = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    old = first.put("request", 0, make_payload(100, 1), LONG_S)
    receiver.get(first.put("request", 1, make_payload(100, 2), LONG_S), LONG_S)
    first.close()
    second = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    try:
        new = second.put("request", 0, make_payload(100, 3), LONG_S)

        with pytest.raises(ConnectorError):
            receiver.get(old, LONG_S)
        assert is_payload(receiver.get(new, LONG_S), 100, 3)
    finally:
        second.close()


def test_a_socket_that_a_killed_sender_left_is_replaced(run_dir: str, receiver: SharedMemoryConnector) -> None:
    with wire.new_socket() as dead, wire.socket_address(make_edge(run_dir, Role.SENDER), 0) as address:
        dead.bind(address)
        dead.listen(1)

    sender = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    try:
        assert receiver.get(sender.put("request", 0, {"x": 1}, LONG_S), LONG_S) == {"x": 1}
    finally:
        sender.close()


def test_a_second_sender_of_the_same_replica_is_refused(run_dir: str, sender: SharedMemoryConnector) -> None:
    with pytest.raises(ConnectorError, match="another sender"):
        SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})


def test_a_sender_that_does_not_answer_is_waited_for_until_the_deadline(
    receiver: SharedMemoryConnector, mute: socket.socket
) -> None:
    with pytest.raises(PayloadNotReady, match="in time"):
        receiver.get(handle(), 0.05)


def test_close_ends_a_waiting_get(sender: SharedMemoryConnector, receiver: SharedMemoryConnector) -> None:
    receiver.get(sender.put("request", 0, {"x": 1}, LONG_S), LONG_S)
    asked = threading.Event()
    answer = threading.Event()

    def hang(area: int) -> None:
        asked.set()
        answer.wait(30)

    sender._sender.memory_of = hang  # type: ignore[union-attr,method-assign,assignment]
    errors: list[BaseException] = []

    def get() -> None:
        try:
            receiver.get(handle(), LONG_S)
        except ConnectorError as error:
            errors.append(error)

    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    assert asked.wait(30)

    receiver.close()
    thread.join(30)
    answer.set()

    assert not thread.is_alive()
    assert isinstance(errors[0], PeerGone)


def test_a_late_answer_does_not_reach_the_next_get(sender: SharedMemoryConnector, receiver: SharedMemoryConnector) -> None:
    receiver.get(sender.put("request", 0, {"x": 1}, LONG_S), LONG_S)
    inner = sender._sender
    assert inner is not None
    memory_of, late, go = inner.memory_of, threading.Event(), threading.Event()

    def slow(area: int) -> int | None:
        late.set()
        go.wait(30)
        return memory_of(area)

    inner.memory_of = slow  # type: ignore[method-assign]
    first = sender.put("request", 1, make_payload(LARGE, 1), LONG_S)
    second = sender.put("request", 2, make_payload(LARGE, 2), LONG_S)
    with pytest.raises(PayloadNotReady, match="in time"):
        receiver.get(first, 0.05)
    assert late.wait(30)
    go.set()

    assert is_payload(receiver.get(second, LONG_S), LARGE, 2)


@pytest.mark.parametrize(
    "message", [b"\xff", wire.encode_message(wire.Gone(1)), bytes(100)], ids=["noise", "wrong way", "zeros"]
)
def test_a_peer_that_talks_nonsense_is_dropped_and_the_others_stay(
    run_dir: str, sender: SharedMemoryConnector, receiver: SharedMemoryConnector, message: bytes
) -> None:
    receiver.get(sender.put("request", 0, {"x": 1}, LONG_S), LONG_S)
    with wire.new_socket() as stranger, wire.socket_address(make_edge(run_dir, Role.RECEIVER), 0) as address:
        stranger.settimeout(30)
        stranger.connect(address)
        data, fd = wire.receive_with_descriptor(stranger)
        assert data
        assert fd is not None
        os.close(fd)
        stranger.send(message)

        assert stranger.recv(100) == b""

    assert receiver.get(sender.put("request", 0, {"x": 2}, LONG_S), LONG_S) == {"x": 2}
    wait_for(lambda: sender.health()["peers"] == 1, "the stranger to be forgotten")


def test_a_sender_of_another_user_is_refused(
    sender: SharedMemoryConnector, receiver: SharedMemoryConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = sender.put("request", 0, {"x": 1}, LONG_S)
    monkeypatch.setattr(wire.os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(ConnectorError):
        receiver.get(sent, 5.0)


def test_a_run_directory_with_a_long_path_can_be_used(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir(mode=0o700)
    ends: list[Any] = [SharedMemoryConnector(make_edge(str(folder), role), {}) for role in (Role.SENDER, Role.RECEIVER)]

    try:
        assert ends[1].get(ends[0].put("request", 0, {"x": 1}, LONG_S), LONG_S) == {"x": 1}
        assert os.listdir(folder) == ["shm-0-1-0.sock"]
    finally:
        for end in ends:
            end.close()


@pytest.mark.engine
def test_tensors_that_only_torch_has_arrive(sender: SharedMemoryConnector, receiver: SharedMemoryConnector) -> None:
    torch = pytest.importorskip("torch")
    sent = torch.arange(60).reshape(3, 20).to(torch.bfloat16)

    got = receiver.get(sender.put("request", 0, {"x": sent, "deep": {"y": [sent.T]}}, LONG_S), LONG_S)

    assert got["x"].dtype == torch.bfloat16
    assert torch.equal(got["x"], sent)
    assert torch.equal(got["deep"]["y"][0], sent.T)

    got = receiver.get(sender.put("request", 1, {"x": sent.float()}, LONG_S), LONG_S)

    assert torch.equal(torch.from_numpy(got["x"]), sent.float())


def test_a_payload_that_is_kept_keeps_its_slot(sender: SharedMemoryConnector, receiver: SharedMemoryConnector) -> None:
    kept = receiver.get(sender.put("request", 0, make_payload(1_000_000, 1), LONG_S), LONG_S)

    for seed in range(100):
        handle = sender.put("other", seed, make_payload(1_000_000, seed), LONG_S)
        assert is_payload(receiver.get(handle, LONG_S), 1_000_000, seed)

    assert is_payload(kept, 1_000_000, 1)
    assert sender.health()["in_flight"] == 0
    assert sender.health()["in_use_by_receivers"] == receiver.health()["in_use"] == 1
    del kept
    assert receiver.health()["in_use"] == 0
    assert sender.health()["arena_taken_bytes"] == 0


def test_a_part_of_a_payload_keeps_its_slot(sender: SharedMemoryConnector, receiver: SharedMemoryConnector) -> None:
    sent = {"a": np.arange(100_000), "b": {"c": [np.ones(100_000)]}}
    part = receiver.get(sender.put("request", 0, sent, LONG_S), LONG_S)["a"][5:7]

    assert sender.health()["in_use_by_receivers"] == 1
    assert part.tolist() == [5, 6]
    del part
    assert sender.health()["in_use_by_receivers"] == 0


def test_views_outlive_a_closed_receiver_and_keep_their_slot(sender: SharedMemoryConnector, run_dir: str) -> None:
    first = SharedMemoryConnector(make_edge(run_dir, Role.RECEIVER), {})
    kept = [
        first.get(sender.put("request", n, make_payload(nbytes, n), LONG_S), LONG_S) for n, nbytes in enumerate((10**6, LARGE))
    ]

    first.close()

    second = SharedMemoryConnector(make_edge(run_dir, Role.RECEIVER), {})
    try:
        for seed in range(20):
            handle = sender.put("other", seed, make_payload((10**6, LARGE)[seed % 2], seed), LONG_S)
            assert is_payload(second.get(handle, LONG_S), (10**6, LARGE)[seed % 2], seed)
        assert is_payload(kept[0], 10**6, 0)
        assert is_payload(kept[1], LARGE, 1)
    finally:
        second.close()
    kept.clear()
    wait_for(lambda: sender.health()["peers"] == 0, "the first receiver's connection to end with its last array")
    assert sender.health()["in_use_by_receivers"] == 0
