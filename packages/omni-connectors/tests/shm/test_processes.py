"""Processes that are killed: nobody waits, nothing leaks, and /dev/shm is not used."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omni_connectors.shm import SharedMemoryConnector
from omni_connectors.shm import sender as sender_module
from omni_core.connector import ConnectorError, PeerGone, Role
from omni_core.testing.connector_ends import wait_for
from omni_core.testing.connector_peer import Peer, is_payload, make_edge, make_payload

TARGET = "omni_connectors.shm:SharedMemoryConnector"
LONG_S = 10_000.0
MIB = 2**20
NOISE_BYTES = 160 * MIB
"""How much shared memory other programs of the machine may come to use during a test."""

StartPeer = Callable[..., Peer]


@pytest.fixture
def start_peer(run_dir: str) -> Iterator[StartPeer]:
    started: list[Peer] = []

    def start(role: Role, wrapper: tuple[str, ...] = (), run_dir: str = run_dir) -> Peer:
        started.append(Peer(TARGET, {}, make_edge(run_dir, role), wrapper=wrapper))
        return started[-1]

    yield start
    for peer in started:
        peer.__exit__()


def shared_memory_in_use() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Shmem in /proc/meminfo")


@pytest.mark.parametrize("nbytes", [0, 5000, 100 * MIB, 256 * MIB], ids=str)
def test_payloads_cross_processes_both_ways_of_memory(start_peer: StartPeer, nbytes: int) -> None:
    sender, receiver = start_peer(Role.SENDER), start_peer(Role.RECEIVER)

    handle = sender.call("put", request_id="request", nbytes=nbytes, seed=3)["handle"]

    assert receiver.call("get", handle=handle, nbytes=nbytes, seed=3)["same"]
    wait_for(lambda: sender.call("health")["in_flight"] == 0, "the payload to be freed")


@pytest.mark.parametrize("nbytes", [5000, 20 * MIB], ids=["small", "large"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "never connected"])
def test_a_sender_killed_before_the_fetch_is_reported_at_once(
    start_peer: StartPeer, run_dir: str, nbytes: int, connected: bool
) -> None:
    sender = start_peer(Role.SENDER)
    receiver = SharedMemoryConnector(make_edge(run_dir, Role.RECEIVER), {})
    try:
        if connected:
            first = sender.call("put", request_id="request", nbytes=1, seed=1)["handle"]
            receiver.get(bytes.fromhex(first), LONG_S)
        handle = sender.call("put", request_id="request", nbytes=nbytes, seed=1)["handle"]

        sender.kill()

        with pytest.raises(PeerGone):
            receiver.get(bytes.fromhex(handle), LONG_S)
    finally:
        receiver.close()


@pytest.mark.parametrize("nbytes", [5000, 20 * MIB], ids=["small", "large"])
def test_a_fetched_payload_outlives_a_killed_sender(start_peer: StartPeer, run_dir: str, nbytes: int) -> None:
    sender = start_peer(Role.SENDER)
    receiver = SharedMemoryConnector(make_edge(run_dir, Role.RECEIVER), {})
    try:
        handle = sender.call("put", request_id="request", nbytes=nbytes, seed=1)["handle"]
        got = receiver.get(bytes.fromhex(handle), LONG_S)

        sender.kill()

        assert is_payload(got, nbytes, 1)
    finally:
        receiver.close()


def test_a_killed_receiver_frees_a_put_that_waits(start_peer: StartPeer, run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "ARENA_BYTES", 1 << 16)
    monkeypatch.setattr(sender_module, "LARGE_CAP_BYTES", 1 << 16)
    receiver = start_peer(Role.RECEIVER)
    sender = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    errors: list[BaseException] = []

    def put_until_refused() -> None:
        try:
            while True:
                sender.put("request", 1, make_payload(40_000, 1), LONG_S)
        except ConnectorError as error:
            errors.append(error)

    try:
        first = sender.put("request", 0, make_payload(1, 1), LONG_S)
        assert receiver.call("get", handle=first.hex(), nbytes=1, seed=1)["same"]
        thread = threading.Thread(target=put_until_refused, daemon=True)
        thread.start()
        wait_for(lambda: sender.health()["in_flight"] == 2, "the arena and the memory outside to be full")

        receiver.kill()
        thread.join(30)

        assert isinstance(errors[0], PeerGone)
    finally:
        sender.close()


def test_both_killed_leave_no_memory_and_no_name(start_peer: StartPeer, run_dir: str) -> None:
    base = shared_memory_in_use()
    sender, receiver = start_peer(Role.SENDER), start_peer(Role.RECEIVER)
    handles = [sender.call("put", request_id="request", nbytes=256 * MIB, seed=1)["handle"] for _ in range(2)]
    assert receiver.call("get", handle=handles[0], nbytes=256 * MIB, seed=1)["same"]
    assert Path(f"/proc/{sender.pid}/maps").read_text().count("/memfd:omni-arena (deleted)") == 1
    assert "/dev/shm" not in Path(f"/proc/{sender.pid}/maps").read_text()

    sender.kill()
    receiver.kill()

    wait_for(lambda: shared_memory_in_use() < base + NOISE_BYTES, "the kernel to free the memory")
    assert os.listdir(run_dir) == ["shm-0-1-0.sock"]


def test_a_small_dev_shm_is_neither_used_nor_a_limit(start_peer: StartPeer) -> None:
    private = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")
    sender, receiver = start_peer(Role.SENDER, wrapper=private), start_peer(Role.RECEIVER, wrapper=private)

    handle = sender.call("put", request_id="request", nbytes=100 * MIB, seed=1)["handle"]

    assert sender.call("listdir", path="/dev/shm")["names"] == []
    assert receiver.call("get", handle=handle, nbytes=100 * MIB, seed=1)["same"]
    assert receiver.call("listdir", path="/dev/shm")["names"] == []


def test_two_servers_work_at_once(start_peer: StartPeer, run_dir: str, tmp_path: Path) -> None:
    other_dir = tmp_path / "second"
    other_dir.mkdir(mode=0o700)
    dirs = (run_dir, str(other_dir))
    senders = [start_peer(Role.SENDER, run_dir=folder) for folder in dirs]
    receivers = [start_peer(Role.RECEIVER, run_dir=folder) for folder in dirs]
    handles = [peer.call("put", request_id="same", nbytes=5000, seed=index)["handle"] for index, peer in enumerate(senders)]

    senders[0].kill()

    assert receivers[0].call("get", handle=handles[0], nbytes=5000, seed=0)["error"] == "PeerGone"
    assert receivers[1].call("get", handle=handles[1], nbytes=5000, seed=1)["same"]


def test_what_one_process_put_another_reads_in_order(start_peer: StartPeer, run_dir: str) -> None:
    peer = start_peer(Role.RECEIVER)
    sender = SharedMemoryConnector(make_edge(run_dir, Role.SENDER), {})
    try:
        sizes = [(index * 7919) % 300_000 for index in range(60)]
        handles = [sender.put(f"r{i % 5}", i, make_payload(size, i), LONG_S) for i, size in enumerate(sizes)]

        for index, (handle, size) in enumerate(zip(handles, sizes, strict=True)):
            assert peer.call("get", handle=handle.hex(), nbytes=size, seed=index)["same"]
        wait_for(lambda: sender.health()["in_flight"] == 0, "everything to be freed")
    finally:
        sender.close()
