"""A WebSocket whose other side does as it likes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.websockets import WebSocket

from omni_server.streaming import ClientGoneError
from omni_server.web_socket import CloseCode, EventSocket

pytestmark = pytest.mark.anyio


class Wire:
    """What a server takes; after `fault` is set it raises that."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.fault: Exception | None = None

    async def receive(self) -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(self, message: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.sent.append(message)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def socket(wire: Wire) -> EventSocket:
    found = EventSocket(WebSocket({"type": "websocket", "headers": [], "subprotocols": []}, wire.receive, wire.send))
    await found.accept()
    return found


@pytest.mark.parametrize("fault", [OSError(), RuntimeError("after sending 'websocket.close'")], ids=["broken", "closed"])
async def test_a_connection_that_is_gone_is_a_client_that_is_gone_however_often_one_sends(
    fault: Exception, wire: Wire, socket: EventSocket
) -> None:
    wire.fault = fault

    for _ in range(2):
        with pytest.raises(ClientGoneError):
            await socket.send({"type": "error"})


async def test_halves_of_pairs_are_sent_back_as_they_came(wire: Wire, socket: EventSocket) -> None:
    event = {"type": "error", "message": "there is no `\ud83d` é"}

    await socket.send(event)

    text = wire.sent[-1]["text"]
    text.encode()
    assert json.loads(text) == event


async def test_a_long_reason_fits_into_the_close_frame_and_ends_with_a_whole_character(wire: Wire, socket: EventSocket) -> None:
    await socket.close(CloseCode.POLICY, "é" * 100)

    assert wire.sent[-1]["reason"] == "é" * 61
