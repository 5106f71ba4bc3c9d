"""One spoken turn and an interruption through a pipeline of pipecat's. Run by test_third_party_clients in a venv of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    ErrorFrame,
    InputAudioRawFrame,
    ProposedUserStartedSpeakingFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime.events import AudioConfiguration, AudioInput, SessionProperties, TurnDetection
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

BLOCK = 1920
"""Bytes of 40 ms."""
ANSWER = 48_000
"""Bytes of one answer of the server's."""


class Collector(FrameProcessor):
    """Counts what comes out of the service."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Any] = {"audio": 0, "transcript": "", "errors": [], "interrupted": 0}
        self.came = asyncio.Event()

    async def process_frame(self, frame: Any, direction: FrameDirection) -> None:
        """Note a frame and hand it on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.found["audio"] += len(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.found["transcript"] += frame.text
        elif isinstance(frame, ProposedUserStartedSpeakingFrame):
            self.found["interrupted"] += self.found["audio"] > 0
        elif isinstance(frame, ErrorFrame):
            self.found["errors"].append(frame.error)
        self.came.set()
        await self.push_frame(frame, direction)

    async def until(self, audio: int) -> None:
        """Wait for so many bytes of answers."""
        while self.found["audio"] < audio and not self.found["errors"]:
            self.came.clear()
            await self.came.wait()


async def main(url: str, key: str, model: str) -> dict[str, Any]:
    said = sys.stdin.buffer.read()
    settings = OpenAIRealtimeLLMService.Settings(
        model=model,
        session_properties=SessionProperties(
            instructions="Be brief.",
            audio=AudioConfiguration(input=AudioInput(turn_detection=TurnDetection(type="server_vad"))),
        ),
    )
    service = OpenAIRealtimeLLMService(api_key=key, base_url=f"{url}/v1/realtime", settings=settings)
    collector = Collector()
    errors = collector.found["errors"]
    task = PipelineTask(
        Pipeline([service, collector]),
        params=PipelineParams(audio_in_sample_rate=24_000, audio_out_sample_rate=24_000),
        cancel_on_idle_timeout=False,
    )
    task.add_event_handler("on_pipeline_error", lambda _, frame: errors.append(frame.error))
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    for turn in (1, 2):
        for at in range(0, len(said), BLOCK):
            await task.queue_frame(InputAudioRawFrame(said[at : at + BLOCK], 24_000, 1))
        await collector.until(turn * ANSWER)
    await task.cancel()
    await running
    return collector.found


if __name__ == "__main__":
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    print(json.dumps(asyncio.run(asyncio.wait_for(main(*sys.argv[1:4]), 60))))
