"""One spoken turn and an interruption with openai-agents. Run by test_third_party_clients in a venv of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents.realtime import RealtimeAgent, RealtimeRunner

BLOCK = 1920
"""Bytes of 40 ms."""


async def main(url: str, key: str, model: str) -> dict[str, Any]:
    said = sys.stdin.buffer.read()
    agent = RealtimeAgent(name="agent", instructions="Be brief.")
    settings: Any = {
        "model_name": model,
        "audio": {"input": {"format": "pcm16", "turn_detection": {"type": "server_vad", "interrupt_response": True}}},
    }
    runner = RealtimeRunner(agent, config={"model_settings": settings, "tracing_disabled": True})
    session = await runner.run(model_config={"url": f"{url}/v1/realtime?model={model}", "api_key": key})
    found: dict[str, Any] = {"audio": 0, "transcript": "", "errors": [], "interrupted": 0}
    async with session:

        async def say() -> None:
            for at in range(0, len(said), BLOCK):
                await session.send_audio(said[at : at + BLOCK])

        await say()
        async for event in session:
            if event.type == "audio":
                found["audio"] += len(event.audio.data)
            elif event.type == "error":
                found["errors"].append(str(event.error))
            elif event.type == "audio_interrupted":
                found["interrupted"] += 1
            elif event.type == "history_updated":
                for item in event.history:
                    for part in getattr(item, "content", []):
                        if getattr(item, "role", "") == "assistant" and getattr(part, "transcript", None):
                            found["transcript"] = part.transcript
            elif event.type == "audio_end":
                if found["interrupted"]:
                    break
                await say()  # while the first answer is still played
            if found["interrupted"] and found["errors"]:
                break
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(*sys.argv[1:4]), 60))))
