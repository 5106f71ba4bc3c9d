"""The tests that every connector passes; an author derives a test class from `ConnectorConformance` and names the connector.

    class TestMyConnector(ConnectorConformance):
        target = "my_plugin.connector:MyConnector"

A connector that needs options or a store overrides the fixtures `options` or `run_dir`.
"""

# ruff: noqa: D102
# The names of the tests are their docstrings.

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from omni_core.connector import Connector, ConnectorError, Role
from omni_core.testing.connector_peer import Peer, is_payload, make_connector, make_edge, make_payload

MAX_HANDLE_BYTES = 512
DEADLINE_S = 30.0
"""Given to calls that should end long before."""

MakeEnd = Callable[..., Connector]

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


def assert_equal(sent: Any, got: Any) -> None:
    """Check that a payload, or a part of one, came as it was sent."""
    if isinstance(sent, np.ndarray):
        assert isinstance(got, np.ndarray)
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        assert np.array_equal(got, sent)
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key, value in sent.items():
            assert_equal(value, got[key])
    elif isinstance(sent, list):
        assert len(got) == len(sent)
        for one, other in zip(sent, got, strict=True):
            assert_equal(one, other)
    else:
        assert type(got) is type(sent)
        assert got == sent


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds, at most DEADLINE_S."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S:g} s for {what}"
        time.sleep(0.005)


class ConnectorConformance:
    """Tests of one connector class, in one process and across processes."""

    target: ClassVar[str]
    """Target of the Connector subclass."""

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """Return the connector's options, plain values only."""
        return {}

    @pytest.fixture
    def run_dir(self, tmp_path: Path) -> str:
        """Return a private folder."""
        folder = tmp_path / "run"
        folder.mkdir(mode=0o700)
        return str(folder)

    @pytest.fixture
    def make_end(self, run_dir: str, options: Mapping[str, Any]) -> Iterator[MakeEnd]:
        """Return a function `(role, **edge)` that makes one end; every end is closed after the test."""
        made: list[Connector] = []

        def make(role: Role, run_dir: str = run_dir, **edge: int) -> Connector:
            made.append(make_connector(self.target, options, make_edge(run_dir, role, **edge)))
            return made[-1]

        yield make
        for connector in made:
            connector.close()

    @pytest.fixture
    def sender(self, make_end: MakeEnd) -> Connector:
        """Return the sending end of an edge."""
        return make_end(Role.SENDER)

    @pytest.fixture
    def receiver(self, make_end: MakeEnd, sender: Connector) -> Connector:
        """Return the receiving end of the same edge."""
        return make_end(Role.RECEIVER)

    @pytest.fixture
    def start_peer(self, run_dir: str, options: Mapping[str, Any]) -> Iterator[Callable[[Role], Peer]]:
        """Return a function `(role)` that starts one end in a process of its own."""
        started: list[Peer] = []

        def start(role: Role) -> Peer:
            started.append(Peer(self.target, options, make_edge(run_dir, role)))
            return started[-1]

        yield start
        for peer in started:
            peer.__exit__()

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

    def test_a_payload_crosses_processes(self, sender: Connector, start_peer: Callable[[Role], Peer]) -> None:
        peer = start_peer(Role.RECEIVER)

        for nbytes in (0, 1, 5000, 20_000_000):
            handle = sender.put("request", nbytes, make_payload(nbytes, nbytes), DEADLINE_S)
            assert peer.call("get", handle=handle.hex(), nbytes=nbytes, seed=nbytes)["same"]
        wait_for(lambda: sender.health()["in_flight"] == 0, "fetched payloads to be freed")

    def test_a_killed_sender_is_noticed(self, make_end: MakeEnd, start_peer: Callable[[Role], Peer]) -> None:
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
        self, sender: Connector, make_end: MakeEnd, start_peer: Callable[[Role], Peer]
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
