"""One spoken turn and an interruption with LiveKit's OpenAI plugin. Run by test_third_party_clients in a venv of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
from livekit import rtc
from livekit.plugins.openai import realtime
from openai.types.realtime.realtime_audio_input_turn_detection import ServerVad

BLOCK = 1920
"""Bytes of 40 ms."""


async def main(url: str, key: str, model: str) -> dict[str, Any]:
    said = sys.stdin.buffer.read()
    found: dict[str, Any] = {"audio": 0, "transcript": "", "errors": [], "interrupted": 0}
    answers: asyncio.Queue[Any] = asyncio.Queue()

    def say() -> None:
        for at in range(0, len(said), BLOCK):
            block = said[at : at + BLOCK]
            session.push_audio(rtc.AudioFrame(block, 24_000, 1, len(block) // 2))

    async def hear() -> None:
        generation = await answers.get()
        async for message in generation.message_stream:
            async for frame in message.audio_stream:
                found["audio"] += 2 * frame.samples_per_channel
            async for text in message.text_stream:
                found["transcript"] += text

    async with aiohttp.ClientSession() as http:
        turns = ServerVad(type="server_vad", create_response=True, interrupt_response=True)
        address = url.replace("ws", "http", 1) + "/v1"
        speaker = realtime.RealtimeModel(model=model, base_url=address, api_key=key, turn_detection=turns, http_session=http)
        session = speaker.session()
        session.on("generation_created", answers.put_nowait)
        session.on("error", lambda error: found["errors"].append(str(error.error)))
        session.on("input_speech_started", lambda _: found.update(interrupted=found["interrupted"] + (found["audio"] > 0)))
        await session.update_instructions("Be brief.")
        say()
        await hear()
        say()
        await hear()
        await session.aclose()
        await speaker.aclose()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(*sys.argv[1:4]), 60))))
