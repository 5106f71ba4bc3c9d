"""What happens to payloads when the master, the store's memory or a process fails; nobody waits for ever, nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_connectors.mooncake import MooncakeStoreConnector, outbox
from omni_connectors.mooncake.store import TRANSFER_FAILED
from omni_connectors.testing import CLIENT_TTL_S, MooncakeMaster
from omni_core.connector import ConnectorError, PayloadNotReady, PeerGone, Role, StoreGone
from omni_core.testing.connector_ends import wait_for
from omni_core.testing.connector_extremes import RoomConformance
from omni_core.testing.connector_peer import Peer, is_payload, make_edge, make_payload

TARGET = "omni_connectors.mooncake:MooncakeStoreConnector"
MIB = 2**20
LONG_S = 60.0

End = Callable[[Role], MooncakeStoreConnector]
StartPeer = Callable[..., Peer]


@pytest.fixture
def end(own_master: MooncakeMaster, run_dir: str) -> Iterator[End]:
    made: list[MooncakeStoreConnector] = []

    def make(role: Role) -> MooncakeStoreConnector:
        made.append(MooncakeStoreConnector(make_edge(run_dir, role), own_master.options()))
        return made[-1]

    yield make
    for connector in made:
        connector.close()


@pytest.fixture
def start_peer(own_master: MooncakeMaster, run_dir: str) -> Iterator[StartPeer]:
    started: list[Peer] = []

    def start(role: Role, wrapper: tuple[str, ...] = ()) -> Peer:
        started.append(Peer(TARGET, own_master.options(), make_edge(run_dir, role), wrapper=wrapper))
        return started[-1]

    yield start
    for peer in started:
        peer.__exit__()


def keys_of(connector: MooncakeStoreConnector, *handles: bytes) -> list[int]:
    """Return for each handle 1 if the store still has its key."""
    import msgspec

    keys = [msgspec.msgpack.decode(handle, type=outbox.Handle).key for handle in handles]
    return connector._client.call(lambda: connector._client.store.batch_is_exist(keys), LONG_S)


class TestRoom(RoomConformance):
    """Segment full: nothing is evicted, and whoever puts is held back."""

    target = TARGET
    too_large = 65 * MIB

    @pytest.fixture
    def options(self, own_master: MooncakeMaster) -> dict[str, Any]:
        # What does not fit goes to others' memory, and a store that was used before may still know that of a killed process.
        return own_master.options()


def test_no_key_is_left_behind_a_fetch_or_a_cleanup(end: End) -> None:
    sender, receiver = end(Role.SENDER), end(Role.RECEIVER)
    handles = [sender.put("request", index, make_payload(5000, index), LONG_S) for index in range(4)]
    receiver.get(handles[0], LONG_S)
    assert keys_of(sender, *handles) == [0, 1, 1, 1]

    sender.cleanup("request")

    assert keys_of(sender, *handles) == [0, 0, 0, 0]
    assert sender.health()["to_be_removed"] == 0


def test_close_leaves_no_key(end: End) -> None:
    sender, receiver = end(Role.SENDER), end(Role.RECEIVER)
    handle = sender.put("request", 0, make_payload(5000, 0), LONG_S)

    sender._outbox.close()

    # It waits for the store a moment only.
    wait_for(lambda: keys_of(receiver, handle) == [0], "the key to be removed")


def test_a_killed_master_is_reported_and_a_new_one_is_used(end: End, own_master: MooncakeMaster) -> None:
    sender, receiver = end(Role.SENDER), end(Role.RECEIVER)
    before = sender.put("before", 0, make_payload(5000, 0), LONG_S)
    assert sender.health()["store_answers"]

    own_master.kill()

    with pytest.raises(StoreGone):
        receiver.get(before, LONG_S)
    with pytest.raises(StoreGone):
        sender.put("meanwhile", 0, make_payload(5000, 0), LONG_S)
    assert not sender.health()["store_answers"]
    sender.cleanup("before")
    assert sender.health()["in_flight"] == 0

    own_master.start()

    found: list[dict[str, Any]] = []
    carry = lambda: found.append(receiver.get(sender.put("after", 0, make_payload(5000, 7), 5.0), 5.0))  # noqa: E731
    wait_for(lambda: _succeeds(carry), "both ends to use the new master")
    assert is_payload(found[0], 5000, 7)
    with pytest.raises(PayloadNotReady):
        receiver.get(before, LONG_S)
    assert sender.health()["store_answers"]
    sender.cleanup("after")
    wait_for(lambda: sender.health()["to_be_removed"] == 0, "what was put to be removed")


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except ConnectorError:
        return False
    return True


def test_a_dead_master_is_reported_by_every_call(end: End, own_master: MooncakeMaster) -> None:
    sender = end(Role.SENDER)
    sender.put("request", 0, make_payload(10, 0), LONG_S)
    own_master.kill()

    for _ in range(4):
        with pytest.raises(StoreGone):
            sender.put("request", 1, make_payload(10, 0), 0.2)

    sender.cleanup("request")
    assert sender.health()["in_flight"] == 0


class Hanging:
    """A store whose writes do not return before they are let go."""

    def __init__(self, store: Any) -> None:
        self.let_go = threading.Event()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_from(self, *arguments: Any) -> Any:
        self.let_go.wait()
        return self._store.put_from(*arguments)


def test_a_call_that_hangs_in_the_library_ends_at_its_deadline_and_keeps_nobody_waiting(end: End) -> None:
    """Without a master the library takes 4 s for each call. The loop of a stage calls `cleanup` and `health`."""
    sender = end(Role.SENDER)
    sender.put("request", 0, make_payload(10, 0), LONG_S)
    store = sender._client.store = Hanging(sender._client.store)

    for _ in range(4):
        with pytest.raises(StoreGone, match="did not answer within"):
            sender.put("request", 1, make_payload(10, 0), 0.05)
    sender.cleanup("request")  # if one of the two waited for the library, it would not return
    assert sender.health()["in_flight"] == 0
    store.let_go.set()

    wait_for(lambda: sender.health()["to_be_removed"] == 0, "what was put to be removed")


class Broken:
    """A store whose first write fails on its way to another process."""

    def __init__(self, store: Any) -> None:
        self.places: list[int] = []
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_from(self, key: str, place: int, *arguments: Any) -> Any:
        self.places.append(place)
        return TRANSFER_FAILED if len(self.places) == 1 else self._store.put_from(key, place, *arguments)


@pytest.mark.parametrize("nbytes", [5000, 2 * MIB], ids=["small", "large"])
def test_memory_of_a_write_that_failed_is_not_used_again(end: End, nbytes: int) -> None:
    """The library may read it for another minute, and send what it finds there."""
    sender, receiver = end(Role.SENDER), end(Role.RECEIVER)
    store = sender._client.store = Broken(sender._client.store)

    with pytest.raises(PeerGone):
        sender.put("request", 0, make_payload(nbytes, 0), LONG_S)
    handle = sender.put("request", 1, make_payload(nbytes, 1), LONG_S)

    assert len(set(store.places)) == 2
    assert len(sender._client._doubtful) == 1
    assert is_payload(receiver.get(handle, LONG_S), nbytes, 1)


def test_what_a_dead_master_could_not_remove_is_removed_later(end: End, own_master: MooncakeMaster) -> None:
    """A stopped master is one that cannot be reached: its keys survive."""
    sender, receiver = end(Role.SENDER), end(Role.RECEIVER)
    handle = sender.put("request", 0, make_payload(5000, 0), LONG_S)
    process = own_master._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        sender.cleanup("request")
    finally:
        process.send_signal(signal.SIGCONT)

    wait_for(lambda: sender.health()["to_be_removed"] == 0, "the key to be removed")
    assert keys_of(receiver, handle) == [0]


def test_a_producer_killed_before_the_fetch_is_reported(start_peer: StartPeer, end: End) -> None:
    sender, receiver = start_peer(Role.SENDER), end(Role.RECEIVER)
    handle = bytes.fromhex(sender.call("put", request_id="request", nbytes=5000, seed=1)["handle"])

    sender.kill()

    with pytest.raises(PeerGone):
        receiver.get(handle, LONG_S)
    # Then the master forgets the dead client and what was in its memory.
    wait_for(lambda: keys_of(receiver, handle) == [0], f"{CLIENT_TTL_S} s of silence")
    with pytest.raises(PayloadNotReady):
        receiver.get(handle, LONG_S)


def test_a_payload_fetched_before_its_producer_is_killed_stays(start_peer: StartPeer, end: End) -> None:
    sender, receiver = start_peer(Role.SENDER), end(Role.RECEIVER)
    handle = bytes.fromhex(sender.call("put", request_id="request", nbytes=20 * MIB, seed=1)["handle"])
    got = receiver.get(handle, LONG_S)

    sender.kill()

    assert is_payload(got, 20 * MIB, 1)
    again = start_peer(Role.SENDER)
    handle = bytes.fromhex(again.call("put", request_id="request", nbytes=5000, seed=2)["handle"])
    assert is_payload(receiver.get(handle, LONG_S), 5000, 2)


def test_a_consumer_killed_costs_the_producer_nothing(start_peer: StartPeer, end: End) -> None:
    sender, receiver = end(Role.SENDER), start_peer(Role.RECEIVER)
    fetched = sender.put("dead", 0, make_payload(5000, 1), LONG_S)
    assert receiver.call("get", handle=fetched.hex(), nbytes=5000, seed=1)["same"]
    waiting = sender.put("dead", 1, make_payload(5000, 2), LONG_S)

    receiver.kill()
    sender.cleanup("dead")

    assert keys_of(sender, fetched, waiting) == [0, 0]
    handle = sender.put("alive", 0, make_payload(5000, 3), LONG_S)
    assert is_payload(end(Role.RECEIVER).get(handle, LONG_S), 5000, 3)


def test_both_killed_in_a_small_dev_shm_leave_nothing(start_peer: StartPeer, end: End) -> None:
    private = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")
    sender, receiver = start_peer(Role.SENDER, private), start_peer(Role.RECEIVER, private)
    handles = [sender.call("put", request_id="r", nbytes=20 * MIB, seed=index)["handle"] for index in range(2)]
    assert receiver.call("get", handle=handles[0], nbytes=20 * MIB, seed=0)["same"]
    assert sender.call("listdir", path="/dev/shm")["names"] == receiver.call("listdir", path="/dev/shm")["names"] == []
    names = set(os.listdir("/dev/shm"))

    sender.kill()
    receiver.kill()

    observer = end(Role.RECEIVER)
    wait_for(lambda: keys_of(observer, bytes.fromhex(handles[1])) == [0], f"{CLIENT_TTL_S} s of silence")
    assert {name for name in set(os.listdir("/dev/shm")) - names if "mooncake" in name.lower()} == set()


def test_a_sender_in_the_place_of_a_dead_one_removes_its_keys(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    first, receiver = end(Role.SENDER), end(Role.RECEIVER)
    handle = first.put("request", 0, make_payload(5000, 1), LONG_S)

    second = end(Role.SENDER)

    handle_2 = second.put("request", 0, make_payload(5000, 2), LONG_S)
    assert is_payload(receiver.get(handle_2, LONG_S), 5000, 2)
    with pytest.raises(PayloadNotReady):
        receiver.get(handle, LONG_S)


def test_a_master_that_is_not_there_ends_the_start_by_the_deadline(mooncake: None, run_dir: str) -> None:
    """B16: `master: 127.0.0.1:1`."""
    with pytest.raises(StoreGone, match=r"edge 0 to 1: .* 0.5 s: nothing answers at master 127.0.0.1:1") as caught:
        MooncakeStoreConnector(make_edge(run_dir, Role.SENDER), {"master": "127.0.0.1:1", "setup_timeout_s": 0.5})
    assert caught.value.where == "connectors.under_test"


def test_a_master_that_comes_late_is_waited_for(own_master: MooncakeMaster, run_dir: str) -> None:
    """B16."""
    own_master.kill()
    made: list[MooncakeStoreConnector] = []
    thread = threading.Thread(
        target=lambda: made.append(MooncakeStoreConnector(make_edge(run_dir, Role.SENDER), own_master.options()))
    )
    thread.start()
    own_master.start()

    thread.join(LONG_S)

    assert made[0].put("request", 0, {"x": np.arange(3)}, LONG_S)
    made[0].close()


@pytest.mark.parametrize(("more", "expected"), [({}, "127.0.0.2"), ({"host": "127.0.0.3"}, "127.0.0.3")], ids=str)
def test_the_address_of_the_host_is_used_unless_another_is_given(
    master: MooncakeMaster, run_dir: str, more: dict[str, Any], expected: str
) -> None:
    options = master.options(**more)
    if not more:
        del options["host"]
    edge = replace(make_edge(run_dir, Role.RECEIVER), address="127.0.0.2")

    connector = MooncakeStoreConnector(edge, options)

    assert connector._client.store.get_hostname().startswith(f"{expected}:")
    connector.close()


def test_a_value_larger_than_the_clients_own_buffer_passes(end: End) -> None:
    sender, receiver = end(Role.SENDER), end(Role.RECEIVER)

    handle = sender.put("request", 0, make_payload(40 * MIB, 1), LONG_S)

    assert is_payload(receiver.get(handle, LONG_S), 40 * MIB, 1)


def test_settings_of_the_operator_are_kept(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_STORE_CLIENT_SETUP_RETRIES", "3")
    monkeypatch.delenv("MC_RPC_CONNECT_TIMEOUT_MS", raising=False)

    end(Role.RECEIVER)

    assert os.environ["MC_STORE_CLIENT_SETUP_RETRIES"] == "3"
    assert os.environ["MC_RPC_CONNECT_TIMEOUT_MS"] == "1000"


def test_the_log_of_a_master_is_where_it_was_asked_for(own_master: MooncakeMaster, tmp_path: Path) -> None:
    assert (tmp_path / "mooncake_master.log").stat().st_size > 0


def test_a_payload_in_parts_arrives_once_and_leaves_no_part(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PART_BYTES", 10_000)
    sender, receiver = end(Role.SENDER), end(Role.RECEIVER)
    handles = [
        sender.put("request", index, make_payload(nbytes, index), LONG_S) for index, nbytes in enumerate((25_000, 60_000))
    ]
    keys = [key for handle in handles for key in outbox.part_keys(*handle_fields(handle))]
    assert len(keys) > 8

    assert is_payload(receiver.get(handles[0], LONG_S), 25_000, 0)
    with pytest.raises(PayloadNotReady):
        receiver.get(handles[0], LONG_S)
    wait_for(lambda: sender.health()["in_flight"] == 1, "the sender to see it")
    sender.cleanup("request")

    assert set(sender._client.call(lambda: sender._client.store.batch_is_exist(keys), LONG_S)) == {0}


def handle_fields(handle: bytes) -> tuple[str, int]:
    import msgspec

    place = msgspec.msgpack.decode(handle, type=outbox.Handle)
    return place.key, place.nbytes
