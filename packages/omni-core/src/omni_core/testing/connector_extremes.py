"""Tests of a connector that need more than any machine has at hand: torch, memory, or a connector with little room.

They stand apart so that an author can mark them: `@pytest.mark.slow class TestMyConnectorLarge(LargePayloadConformance)`.
"""

# ruff: noqa: D102
# The names of the tests are their docstrings.

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from omni_core.connector import Connector, ConnectorFull, PayloadTooLarge, Role
from omni_core.testing.connector_ends import DEADLINE_S, ConnectorEnds, StartPeer, wait_for
from omni_core.testing.connector_peer import is_payload, make_payload


class LargePayloadConformance(ConnectorEnds):
    """One payload of `largest` bytes across processes; both hold it, so twice the memory is needed, or three times."""

    largest: ClassVar[int] = 2**30

    def test_the_largest_payload_crosses_processes(self, start_peer: StartPeer) -> None:
        sender, receiver = start_peer(Role.SENDER), start_peer(Role.RECEIVER)

        answer = sender.call("put", 120.0, request_id="request", nbytes=self.largest, seed=1, timeout_s=120.0)

        assert receiver.call("get", 120.0, handle=answer["handle"], nbytes=self.largest, seed=1, timeout_s=120.0)["same"]
        wait_for(lambda: sender.call("health")["in_flight"] == 0, "the payload to be freed")


class TensorConformance(ConnectorEnds):
    """Tensors of torch, also of dtypes that numpy lacks and of layouts that are no block of memory."""

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda torch: torch.arange(60).reshape(3, 4, 5).to(torch.bfloat16), id="bfloat16"),
            pytest.param(lambda torch: torch.arange(16).to(torch.float8_e4m3fn), id="float8_e4m3fn"),
            pytest.param(lambda torch: torch.arange(60.0).reshape(6, 10).t()[::2, 1:], id="not contiguous"),
            pytest.param(lambda torch: torch.arange(12.0).expand(3, 12).to(torch.bfloat16)[:, ::5], id="expanded"),
            pytest.param(lambda torch: torch.empty(0, 7, dtype=torch.bfloat16), id="empty"),
            pytest.param(lambda torch: torch.tensor(3, dtype=torch.bfloat16), id="scalar"),
            pytest.param(lambda torch: torch.randn(2, 3, dtype=torch.complex64).conj(), id="conjugated"),
            pytest.param(lambda torch: torch.arange(4.0, requires_grad=True), id="with gradient"),
            pytest.param(lambda torch: torch.ones(1_500_000, dtype=torch.bfloat16), id="large bfloat16"),
        ],
    )
    def test_a_tensor_arrives_as_it_was_sent(self, sender: Connector, receiver: Connector, make: Callable[[Any], Any]) -> None:
        torch = pytest.importorskip("torch")
        tensor = make(torch).detach()

        got = receiver.get(sender.put("request", 0, {"a": {"b": [tensor]}}, DEADLINE_S), DEADLINE_S)

        found = torch.as_tensor(got["a"]["b"][0])
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        assert torch.equal(found.reshape(-1).contiguous().view(torch.uint8), _bytes_of(torch, tensor))


def _bytes_of(torch: Any, tensor: Any) -> Any:
    return tensor.resolve_conj().reshape(-1).contiguous().view(torch.uint8)


class RoomConformance(ConnectorEnds):
    """Backpressure of a connector that has little room: the fixtures must make one that holds a few MiB to 256 MiB."""

    piece: ClassVar[int] = 2**20
    """Bytes of the payloads that fill the room."""
    too_large: ClassVar[int] = 2**30
    """Bytes of a payload that can never fit."""

    def fill(self, sender: Connector, request_id: str) -> list[bytes]:
        """Put payloads until there is no room, and return their handles."""
        handles: list[bytes] = []
        while len(handles) * self.piece < self.too_large:
            try:
                handles.append(sender.put(request_id, len(handles), make_payload(self.piece, len(handles)), 0.5))
            except ConnectorFull:
                return handles
        raise AssertionError(f"{len(handles)} payloads of {self.piece} bytes found room")

    def test_what_was_put_before_it_was_full_is_whole(self, sender: Connector, receiver: Connector) -> None:
        handles = self.fill(sender, "request")

        assert len(handles) > 1
        assert sender.health()["in_flight"] == len(handles)
        for seed, handle in enumerate(handles):
            assert is_payload(receiver.get(handle, DEADLINE_S), self.piece, seed)

    def test_a_put_that_waits_goes_on_when_there_is_room(self, sender: Connector, receiver: Connector) -> None:
        handles = self.fill(sender, "request")
        found: list[bytes] = []
        thread = threading.Thread(
            target=lambda: found.append(sender.put("late", 0, make_payload(self.piece, 99), DEADLINE_S)), daemon=True
        )
        thread.start()

        for handle in handles[:2]:
            receiver.get(handle, DEADLINE_S)
        thread.join(DEADLINE_S)

        assert is_payload(receiver.get(found[0], DEADLINE_S), self.piece, 99)

    def test_a_cleanup_makes_room(self, sender: Connector, receiver: Connector) -> None:
        self.fill(sender, "slow")

        sender.cleanup("slow")

        handle = sender.put("next", 0, make_payload(self.piece, 5), DEADLINE_S)
        assert is_payload(receiver.get(handle, DEADLINE_S), self.piece, 5)
        wait_for(lambda: sender.health()["in_flight"] == 0, "everything to be freed")

    def test_a_cleanup_ends_the_put_that_waits(self, sender: Connector) -> None:
        self.fill(sender, "slow")
        thread = threading.Thread(
            target=lambda: sender.put("waiting", 0, make_payload(self.piece, 1), 10 * DEADLINE_S), daemon=True
        )
        thread.start()

        sender.cleanup("waiting")
        while thread.is_alive() and sender.health()["in_flight"]:
            # The first cleanup may have come before the put.
            sender.cleanup("waiting")
            thread.join(0.05)

        assert not thread.is_alive()

    def test_a_payload_that_can_never_fit_is_refused(self, sender: Connector) -> None:
        with pytest.raises(PayloadTooLarge):
            sender.put("request", 0, {"x": np.empty(self.too_large, np.uint8)}, DEADLINE_S)

        assert sender.health()["in_flight"] == 0
