"""The speaking half of a WebSocket session, where a cancellation meets an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omni_core.observe.registry import Registry
from omni_server.audio_meter import AudioMeter
from omni_server.speaker import Speaker

pytestmark = pytest.mark.anyio


class SlowSocket:
    """Take everything at once; the sender of the `slow` one goes on when `drained` is set, as with a full buffer."""

    def __init__(self, slow: str = "") -> None:
        self.events: list[dict[str, Any]] = []
        self.heard = 0
        self.waiting = asyncio.Event()
        self.drained = asyncio.Event()
        self._slow = slow

    async def send(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        await self._drain(event["type"])

    async def send_audio(self, data: bytes) -> None:
        self.heard += len(data)
        await self._drain("audio")

    async def _drain(self, kind: str) -> None:
        if kind == self._slow:
            self.waiting.set()
            await self.drained.wait()

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


class Tone:
    """Make two packets of four bytes."""

    engine_id, format, sample_rate, traits = "speech-1", "pcm", 24000, SimpleNamespace(channels=1)

    def for_text(self, text: str, arrived: float) -> Tone:
        self.meter = AudioMeter(Registry(), "websocket", self.sample_rate, arrived)
        return self

    async def packets(self) -> AsyncGenerator[Any, None]:
        for _ in range(2):
            yield b"tone", np.zeros((2, 1), np.float32)


async def test_utterance_that_is_cancelled_while_its_end_begins_ends_once() -> None:
    socket = SlowSocket()
    speaker = Speaker(socket, {})  # type: ignore[arg-type]
    speaker.end(0, 0)
    running = asyncio.create_task(speaker.run())

    await asyncio.sleep(0)  # the end is taken, and its task has not begun
    speaker.cancel(0)
    speaker.stop()
    await asyncio.wait_for(running, 10)

    assert len(socket.of_kind("session.done")) == 1


@pytest.mark.parametrize("slow", ["audio.start", "audio", "audio.done"])
async def test_sentence_that_is_cancelled_while_something_is_sent_ends_once_with_what_was_sent(slow: str) -> None:
    socket = SlowSocket(slow)
    speaker = Speaker(socket, {})  # type: ignore[arg-type]
    speaker.configure(Tone(), streams=True)  # type: ignore[arg-type]
    speaker.say(0, 0, "Hello.")
    running = asyncio.create_task(speaker.run())

    async with asyncio.timeout(10):
        await socket.waiting.wait()
        speaker.cancel(0)
        await asyncio.sleep(0)
        socket.drained.set()
        speaker.stop()
        await running

    assert len(socket.of_kind("audio.start")) == 1
    (done,) = socket.of_kind("audio.done")
    assert done["total_bytes"] == socket.heard == {"audio.start": 0, "audio": 4, "audio.done": 8}[slow]
    assert done.get("cancelled", False) == (slow != "audio.done")
    (ended,) = socket.of_kind("session.done")
    assert ended["cancelled"]
