"""When a conversation is over. What it is like over real sockets is tested in the workspace's tests/test_talk.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from omni_server.talk.client import Conversation, Options
from omni_server.talk.screen import Screen
from omni_server.talk.sound import BLOCK, RATE

CREATED = {
    "type": "session.created",
    "capabilities": {"supports_model_native_turn_policy": True, "supports_audio_truncate": False},
    "session": {"audio": {"input": {"turn_detection": None}}},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class SlowSocket:
    """A connection that takes each message three times as slowly as it plays."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._events = asyncio.Queue[Any]()
        self._events.put_nowait(CREATED)

    async def send(self, text: str) -> None:
        await asyncio.sleep(3 * BLOCK / RATE)
        self.sent.append(json.loads(text)["type"])
        if self.sent[-1] == "session.heartbeat":
            self._events.put_nowait({"type": "session.heartbeat_ack"})

    async def recv(self) -> str:
        return json.dumps(await self._events.get())


class Nothing:
    """Nothing to say."""

    is_endless = False
    is_paced = False

    async def blocks(self) -> AsyncIterator[bytes]:
        for block in ():
            yield block


@pytest.mark.anyio
async def test_a_model_that_takes_no_turns_gets_all_the_silence_however_slowly_it_is_taken() -> None:
    socket = SlowSocket()
    options = Options("http://host", wait_s=10 * BLOCK / RATE)

    await Conversation(cast("Any", socket), options, cast("Any", Nothing()), cast("Any", None), Screen(shows_meter=False)).run()

    assert socket.sent.count("input_audio_buffer.append") == 10
