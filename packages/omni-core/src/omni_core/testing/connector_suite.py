"""The tests that every connector passes; an author derives a test class from `ConnectorConformance` and names the connector.

    class TestMyConnector(ConnectorConformance):
        target = "my_plugin.connector:MyConnector"

A connector that needs options or a store overrides the fixtures `options` or `run_dir`. What takes a torch, much memory or a
connector with little room is in `connector_extremes`.
"""

# ruff: noqa: D102
# The names of the tests are their docstrings.

from __future__ import annotations

import gc
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.connector import Connector, ConnectorError, Role
from omni_core.errors import ServiceError
from omni_core.testing.connector_ends import DEADLINE_S, ConnectorEnds, MakeEnd, StartPeer, assert_equal, wait_for
from omni_core.testing.connector_peer import is_payload, make_payload

MAX_HANDLE_BYTES = 512

PAYLOADS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "plain values": {"n": None, "b": True, "i": -(2**62), "f": 0.5, "s": "tschüß", "raw": b"\x00\xff", "l": [1, "a", None]},
    "nested": {"a": {"b": {"c": [{"d": np.arange(3)}]}}},
    "scalar array": {"x": np.array(3, np.int64)},
    "empty arrays": {"x": np.empty((0, 5), np.float32), "y": np.empty((3, 0, 2), np.int8)},
    "strided array": {"x": np.arange(60, dtype=np.int32).reshape(6, 10)[::2, ::-3]},
    "many arrays": {f"x{i}": np.full(i, i, np.int16) for i in range(50)},
    "big endian": {"x": np.arange(5, dtype=">f8")},
    "large": {"x": np.arange(5_000_000, dtype=np.float64)},
    **{
        f"dtype {name}": {"x": np.arange(24).reshape(2, 3, 4).astype(name)}
        for name in ("bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64", "complex64")
    },
}


class ConnectorConformance(ConnectorEnds):
    """Tests of one connector class, in one process and across processes."""

    @pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
    def test_a_payload_arrives_as_it_was_sent(self, sender: Connector, receiver: Connector, payload: dict[str, Any]) -> None:
        handle = sender.put("request", 0, payload, DEADLINE_S)

        assert_equal(payload, receiver.get(handle, DEADLINE_S))

    def test_a_handle_is_a_few_bytes(self, sender: Connector) -> None:
        handle = sender.put("request-" + "x" * 64, 2**31, make_payload(1 << 20, 0), DEADLINE_S)

        assert isinstance(handle, bytes)
        assert 0 < len(handle) <= MAX_HANDLE_BYTES

    def test_many_requests_share_an_edge(self, sender: Connector, receiver: Connector) -> None:
        order = [(sequence, request) for sequence in range(12) for request in range(9)]
        handles = {key: sender.put(f"r{key[1]}", key[0], make_payload(1000 + key[0], key[1]), DEADLINE_S) for key in order}

        for sequence, request in sorted(order, key=lambda key: (-key[1], key[0])):
            got = receiver.get(handles[sequence, request], DEADLINE_S)
            assert is_payload(got, 1000 + sequence, request)

    @pytest.mark.parametrize("name", ["../../up", "a/b", "a b\n", "ä" * 90, "x" * 300, "."])
    def test_any_request_id_can_be_used(self, sender: Connector, receiver: Connector, name: str) -> None:
        handle = sender.put(name, 0, {"x": 1}, DEADLINE_S)
        other = sender.put(name, 1, {"x": 2}, DEADLINE_S)

        assert receiver.get(handle, DEADLINE_S) == {"x": 1}
        sender.cleanup(name)
        with pytest.raises(ConnectorError):
            receiver.get(other, 0.2)

    @pytest.mark.parametrize("nbytes", [100, 20_000_000], ids=["small", "large"])
    def test_a_payload_is_delivered_once(self, sender: Connector, receiver: Connector, nbytes: int) -> None:
        handle = sender.put("request", 0, make_payload(nbytes, 1), DEADLINE_S)
        receiver.get(handle, DEADLINE_S)

        with pytest.raises(ConnectorError):
            receiver.get(handle, 0.2)

    @pytest.mark.parametrize("handle", [b"", b"\x00", b"\xff" * 16, bytes(200), b"\x94\x00\x01\x02\xc0"], ids=repr)
    def test_a_handle_that_is_none_is_refused(self, sender: Connector, receiver: Connector, handle: bytes) -> None:
        with pytest.raises(ConnectorError):
            receiver.get(handle, 0.2)

        assert receiver.get(sender.put("request", 0, {"x": 1}, DEADLINE_S), DEADLINE_S) == {"x": 1}

    def test_what_needs_no_waiting_is_handed_over_as_everything_is(self, sender: Connector, receiver: Connector) -> None:
        handles = []
        for number in range(6):
            handle = sender.try_put("request", number, make_payload(2_000, number)) if number % 3 else None
            handles.append(handle or sender.put("request", number, make_payload(2_000, number), DEADLINE_S))
        for number, handle in enumerate(handles):
            got = receiver.try_get(handle) if number % 2 else None
            assert is_payload(got or receiver.get(handle, DEADLINE_S), 2_000, number)

        for handle in handles:
            with pytest.raises(ConnectorError):
                receiver.try_get(handle) or receiver.get(handle, 0.2)
        wait_for(lambda: sender.health()["in_flight"] == 0, "the payloads to be freed")

    def test_cleanup_of_an_unknown_request_is_no_error(self, sender: Connector, receiver: Connector) -> None:
        sender.cleanup("unknown")
        receiver.cleanup("unknown")

    @pytest.mark.parametrize("nbytes", [100, 20_000_000], ids=["small", "large"])
    def test_cleanup_frees_what_was_not_fetched(self, sender: Connector, receiver: Connector, nbytes: int) -> None:
        handles = [sender.put("ended", index, make_payload(nbytes, index), DEADLINE_S) for index in range(3)]
        kept = sender.put("kept", 0, make_payload(nbytes, 7), DEADLINE_S)
        receiver.get(handles[0], DEADLINE_S)

        sender.cleanup("ended")
        sender.cleanup("ended")

        for handle in handles:
            with pytest.raises(ConnectorError):
                receiver.get(handle, 0.2)
        assert sender.health()["in_flight"] == 1
        assert is_payload(receiver.get(kept, DEADLINE_S), nbytes, 7)

    def test_a_request_can_go_on_after_cleanup(self, sender: Connector, receiver: Connector) -> None:
        sender.put("request", 0, {"x": 1}, DEADLINE_S)
        sender.cleanup("request")

        handle = sender.put("request", 0, {"x": 2}, DEADLINE_S)

        assert receiver.get(handle, DEADLINE_S) == {"x": 2}

    def test_health_counts_what_is_on_its_way(self, sender: Connector, receiver: Connector) -> None:
        assert sender.health()["in_flight"] == 0
        assert sender.health()["bytes_in_flight"] == 0
        handles = [sender.put("request", index, make_payload(5000, index), DEADLINE_S) for index in range(4)]

        assert sender.health()["in_flight"] == 4
        assert sender.health()["bytes_in_flight"] >= 20_000
        for handle in handles:
            receiver.get(handle, DEADLINE_S)
        wait_for(lambda: sender.health()["in_flight"] == 0, "fetched payloads to be freed")
        assert sender.health()["bytes_in_flight"] == 0

    def test_room_is_used_again(self, sender: Connector, receiver: Connector) -> None:
        for index in range(300):
            handle = sender.put("request", index, make_payload(1 << 20, index), DEADLINE_S)
            assert is_payload(receiver.get(handle, DEADLINE_S), 1 << 20, index)

        wait_for(lambda: sender.health()["bytes_in_flight"] == 0, "fetched payloads to be freed")

    @pytest.mark.parametrize("nbytes", [100, 20_000_000], ids=["small", "large"])
    def test_the_payload_belongs_to_its_receiver(self, sender: Connector, receiver: Connector, nbytes: int) -> None:
        sent = make_payload(nbytes, 1)
        handle = sender.put("request", 0, sent, DEADLINE_S)
        sent["data"][:] = 0
        got = receiver.get(handle, DEADLINE_S)
        assert is_payload(got, nbytes, 1)
        again = receiver.get(sender.put("request", 1, make_payload(nbytes, 2), DEADLINE_S), DEADLINE_S)

        got["data"][:] += 1
        sender.cleanup("request")
        sender.close()
        receiver.close()

        assert np.array_equal(got["data"], make_payload(nbytes, 1)["data"] + 1)
        assert is_payload(again, nbytes, 2)

    def test_edges_do_not_meet(self, make_end: MakeEnd, tmp_path: Path) -> None:
        other_dir = tmp_path / "other"
        other_dir.mkdir(mode=0o700)
        places: list[dict[str, Any]] = [{}, {"to_stage": 2}, {"run_dir": str(other_dir)}]
        ends = [(make_end(Role.SENDER, **place), make_end(Role.RECEIVER, **place)) for place in places]
        handles = [sender.put("request", 0, {"x": index}, DEADLINE_S) for index, (sender, _) in enumerate(ends)]

        ends[0][0].cleanup("request")

        with pytest.raises(ConnectorError):
            ends[0][1].get(handles[0], 0.2)
        assert ends[1][1].get(handles[1], DEADLINE_S) == {"x": 1}
        assert ends[2][1].get(handles[2], DEADLINE_S) == {"x": 2}

    def test_replicas_share_an_edge(self, make_end: MakeEnd) -> None:
        senders = [make_end(Role.SENDER, replica=replica) for replica in range(2)]
        receivers = [make_end(Role.RECEIVER, replica=replica) for replica in range(2)]

        for sender in senders:
            for receiver in receivers:
                handle = sender.put("request", 0, make_payload(3000, 4), DEADLINE_S)
                assert is_payload(receiver.get(handle, DEADLINE_S), 3000, 4)

    def test_a_closed_end_refuses_work(self, sender: Connector, receiver: Connector) -> None:
        handle = sender.put("request", 0, {"x": 1}, DEADLINE_S)

        for end in (sender, receiver):
            end.close()
            end.close()

        with pytest.raises(ConnectorError):
            sender.put("request", 1, {"x": 1}, 0.2)
        with pytest.raises(ConnectorError):
            receiver.get(handle, 0.2)
        sender.cleanup("request")
        receiver.cleanup("request")

    def test_cleanup_and_health_may_come_from_another_thread(self, sender: Connector, receiver: Connector) -> None:
        stop, errors = threading.Event(), []

        def disturb() -> None:
            try:
                while not stop.is_set():
                    sender.cleanup("other")
                    assert sender.health()["in_flight"] >= 0
            except Exception as error:  # noqa: BLE001 - the test's own thread raises it again
                errors.append(error)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for index in range(200):
                sender.put("other", index, make_payload(3000, index), DEADLINE_S)
                handle = sender.put("request", index, make_payload(3000, index), DEADLINE_S)
                assert is_payload(receiver.get(handle, DEADLINE_S), 3000, index)
        finally:
            stop.set()
            thread.join(DEADLINE_S)

        assert not errors

    def test_a_payload_crosses_processes(self, sender: Connector, start_peer: StartPeer) -> None:
        peer = start_peer(Role.RECEIVER)

        for nbytes in (0, 1, 5000, 20_000_000):
            handle = sender.put("request", nbytes, make_payload(nbytes, nbytes), DEADLINE_S)
            assert peer.call("get", handle=handle.hex(), nbytes=nbytes, seed=nbytes)["same"]
        wait_for(lambda: sender.health()["in_flight"] == 0, "fetched payloads to be freed")

    def test_a_killed_sender_is_noticed(self, make_end: MakeEnd, start_peer: StartPeer) -> None:
        peer = start_peer(Role.SENDER)
        receiver = make_end(Role.RECEIVER)
        first = peer.call("put", request_id="request", nbytes=5000, seed=1)["handle"]
        assert is_payload(receiver.get(bytes.fromhex(first), DEADLINE_S), 5000, 1)
        second = peer.call("put", request_id="request", nbytes=5000, seed=2)["handle"]

        peer.kill()

        # What was put before may still be there, or the end is reported; nothing else, and no wait for ever.
        try:
            assert is_payload(receiver.get(bytes.fromhex(second), 5.0), 5000, 2)
        except ConnectorError:
            return

    def test_a_killed_receiver_leaves_the_sender_working(
        self, sender: Connector, make_end: MakeEnd, start_peer: StartPeer
    ) -> None:
        peer = start_peer(Role.RECEIVER)
        fetched = sender.put("dead", 0, make_payload(5000, 1), DEADLINE_S)
        assert peer.call("get", handle=fetched.hex(), nbytes=5000, seed=1)["same"]
        sender.put("dead", 1, make_payload(5000, 2), DEADLINE_S)

        peer.kill()
        sender.cleanup("dead")

        wait_for(lambda: sender.health()["in_flight"] == 0, "the dead receiver's payloads to be freed")
        handle = sender.put("alive", 0, make_payload(5000, 3), DEADLINE_S)
        assert is_payload(make_end(Role.RECEIVER).get(handle, DEADLINE_S), 5000, 3)

    def test_requests_keep_their_order_across_processes(self, sender: Connector, start_peer: StartPeer) -> None:
        peer = start_peer(Role.RECEIVER)
        sizes = [(index * 7919) % 300_000 for index in range(40)]
        handles = [sender.put(f"r{i % 5}", i // 5, make_payload(size, i), DEADLINE_S) for i, size in enumerate(sizes)]

        for index, (handle, size) in enumerate(zip(handles, sizes, strict=True)):
            assert peer.call("get", handle=handle.hex(), nbytes=size, seed=index)["same"]

    def test_batches_keep_their_order(self, sender: Connector, receiver: Connector) -> None:
        items = [(f"r{index % 3}", index, make_payload(index * 999, index)) for index in range(20)]

        handles = sender.put_batch(items, DEADLINE_S)
        found = receiver.get_batch(handles[::-1], DEADLINE_S)

        assert len(handles) == len(items)
        assert all(is_payload(got, item[2]["data"].nbytes, item[1]) for got, item in zip(found[::-1], items, strict=True))
        wait_for(lambda: sender.health()["in_flight"] == 0, "fetched payloads to be freed")

    def test_a_batch_that_cannot_be_put_is_freed_with_its_request(self, sender: Connector) -> None:
        with pytest.raises(ServiceError):
            sender.put_batch([("request", 0, {"x": 1}), ("request", 1, {"x": object()})], DEADLINE_S)

        sender.cleanup("request")

        assert sender.health()["in_flight"] == 0

    def test_nothing_is_pickled(self, sender: Connector, receiver: Connector, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("a payload was pickled")

        for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
            monkeypatch.setattr(pickle, name, refuse)

        handle = sender.put("request", 0, make_payload(5000, 1), DEADLINE_S)
        assert is_payload(receiver.get(handle, DEADLINE_S), 5000, 1)
        with pytest.raises(ServiceError):
            sender.put("request", 1, {"x": threading.Event()}, DEADLINE_S)
        assert sender.health()["in_flight"] <= 1

    @pytest.mark.parametrize("nbytes", [100, 3_000_000], ids=["small", "large"])
    def test_an_abort_at_any_moment_leaves_nothing(self, sender: Connector, receiver: Connector, nbytes: int) -> None:
        for moment in range(12):
            handles: list[bytes] = []
            begun = threading.Event()

            def put_some(name: str, handles: list[bytes] = handles, begun: threading.Event = begun) -> None:
                for sequence in range(4):
                    begun.set()
                    handles.append(sender.put(name, sequence, make_payload(nbytes, sequence), DEADLINE_S))

            thread = threading.Thread(target=put_some, args=(f"r{moment}",))
            thread.start()
            assert begun.wait(DEADLINE_S)
            wait_for(lambda handles=handles, count=moment % 4: len(handles) >= count, "some payloads")  # type: ignore[misc]
            sender.cleanup(f"r{moment}")
            receiver.cleanup(f"r{moment}")
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
            sender.cleanup(f"r{moment}")
            for handle in handles:
                with pytest.raises(ConnectorError):
                    receiver.get(handle, 0.2)

        wait_for(lambda: sender.health()["in_flight"] == 0, "everything to be freed")
        assert sender.health()["bytes_in_flight"] == 0

    def test_a_sender_killed_in_a_put_leaves_no_half_payload(self, make_end: MakeEnd, start_peer: StartPeer) -> None:
        receiver = make_end(Role.RECEIVER)
        for seed in range(3):
            peer = start_peer(Role.SENDER)
            handle = peer.call("put", request_id="request", nbytes=5000, seed=seed)["handle"]
            assert is_payload(receiver.get(bytes.fromhex(handle), DEADLINE_S), 5000, seed)
            peer.tell("put", request_id="request", nbytes=40_000_000, seed=seed)
            peer.kill()

    def test_a_receiver_killed_in_a_get_leaves_the_sender_working(
        self, sender: Connector, make_end: MakeEnd, start_peer: StartPeer
    ) -> None:
        for seed in range(3):
            peer = start_peer(Role.RECEIVER)
            handle = sender.put("dead", seed, make_payload(20_000_000, seed), DEADLINE_S)
            peer.tell("get", handle=handle.hex(), nbytes=20_000_000, seed=seed)
            peer.kill()
            sender.cleanup("dead")

        wait_for(lambda: sender.health()["in_flight"] == 0, "the dead receivers' payloads to be freed")
        handle = sender.put("alive", 0, make_payload(20_000_000, 3), DEADLINE_S)
        assert is_payload(make_end(Role.RECEIVER).get(handle, DEADLINE_S), 20_000_000, 3)

    def test_ends_that_come_and_go_leave_no_descriptor_and_no_thread(self, make_end: MakeEnd) -> None:
        def held() -> tuple[int, int]:
            gc.collect()
            return len(os.listdir("/proc/self/fd")), threading.active_count()

        def use() -> None:
            sender, receiver = make_end(Role.SENDER), make_end(Role.RECEIVER)
            for nbytes in (10, 20_000_000):
                receiver.get(sender.put("request", 0, make_payload(nbytes, 1), DEADLINE_S), DEADLINE_S)
                sender.put("request", 1, make_payload(nbytes, 1), DEADLINE_S)
            sender.close()
            receiver.close()

        # A library may open things for the whole process when it is used for the first time.
        use()
        first = held()
        for _ in range(3):
            use()
        # Waited for, since a library that another test used may try to reach a store that is gone just now.
        wait_for(
            lambda: all(now <= then for now, then in zip(held(), first, strict=True)), "descriptors and threads to be gone"
        )
