"""One spoken turn over the Live API with LiveKit's GPT-Live model. Run by test_third_party_clients in a venv of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai import realtime

BLOCK = 1920
"""Bytes of 40 ms."""
ANSWER = 48_000
"""Bytes of one answer of the server's."""


async def main(url: str, key: str, model: str) -> dict[str, Any]:
    said = sys.stdin.buffer.read()
    found: dict[str, Any] = {"audio": 0, "transcript": "", "errors": [], "interrupted": 0}
    async with aiohttp.ClientSession() as http:
        address = url.replace("ws", "http", 1) + "/v1"
        speaker = realtime.GPTLiveModel(model=model, delegation="client", base_url=address, api_key=key, http_session=http)
        session = speaker.session()
        session.on("error", lambda error: found["errors"].append(str(error.error)))

        def heard(event: Any) -> None:
            found["transcript"] += event.text

        session.on("transcript_delta", heard)
        await session._update_session(instructions="Be brief.", chat_ctx=llm.ChatContext.empty(), tools=[])
        for at in range(0, len(said), BLOCK):
            block = said[at : at + BLOCK]
            session.push_audio(rtc.AudioFrame(block, 24_000, 1, len(block) // 2))
        async for sound in session.audio_stream:
            found["audio"] += 2 * sound.frame.samples_per_channel
            if found["audio"] >= ANSWER:
                break
        await session.aclose()
        await speaker.aclose()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(*sys.argv[1:4]), 60))))
