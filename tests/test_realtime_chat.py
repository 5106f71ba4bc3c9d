"""Qwen3-Omni in sessions: the official client, turns that the client commits, the tiny checkpoint on real engines."""

from __future__ import annotations

import asyncio
import base64
import io
import subprocess
import sys
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(600)]

MODEL = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
RATE = 16_000
DEPLOY = """
base_config: qwen3_omni_duplex.yaml
duplex_session: {max_sessions: 2}
platforms:
  cpu:
    stages:
      - stage_id: 0
        max_model_len: 1024
        kv_cache_memory_bytes: 67108864
        max_num_seqs: 8
        default_sampling_params: {max_tokens: 12}
      - stage_id: 1
        max_model_len: 1024
        kv_cache_memory_bytes: 67108864
        max_num_seqs: 8
        default_sampling_params: {max_tokens: 60}
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("duplex")
    command = [sys.executable, "-m", "omni_core", "tiny", "qwen3_omni_moe", str(folder / "model")]
    subprocess.run(command, check=True, timeout=240)
    (folder / "duplex.yaml").write_text(DEPLOY)
    with serve(
        folder / "model",
        *("--deploy-config", str(folder / "duplex.yaml"), "--served-model-name", MODEL),
        log=folder / "serve.log",
        env={"OMP_NUM_THREADS": "1"},
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def _free_slots(server: RunningServer) -> None:
    """Begin when the sessions of the test before are gone."""
    server.wait_for_free_sessions()


def sound(pitch: int) -> np.ndarray[Any, Any]:
    return (8000 * np.sin(np.arange(RATE) / pitch)).astype("<i2")


def recording(pitch: int) -> bytes:
    """Return the same sound as a WAV file."""
    with io.BytesIO() as buffer:
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(sound(pitch).tobytes())
        return buffer.getvalue()


@dataclass
class Answer:
    """What one turn gave."""

    status: str = ""
    words: str = ""
    audio: bytes = b""
    usage: Any = None
    kinds: list[str] = field(default_factory=list)


class Talk:
    """A session of the official client."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def say(self, pcm: np.ndarray[Any, Any]) -> None:
        await self.session.input_audio_buffer.append(audio=base64.b64encode(pcm.tobytes()).decode())
        await self.session.input_audio_buffer.commit()

    async def answer(self, *, cancel_at: int | None = None, **response: Any) -> Answer:
        await self.session.response.create(response=response)
        found = Answer()
        async with asyncio.timeout(120):
            async for event in self.session:
                found.kinds.append(event.type)
                assert event.type != "error", event
                if event.type == "response.output_audio.delta":
                    found.audio += base64.b64decode(event.delta)
                    if cancel_at is not None and len(found.audio) >= cancel_at:
                        cancel_at = None
                        await self.session.response.cancel()
                elif event.type in ("response.output_audio_transcript.delta", "response.output_text.delta"):
                    found.words += event.delta
                elif event.type == "response.done":
                    found.status, found.usage = event.response.status, event.response.usage
                    return found
        raise AssertionError("the connection ended")


@asynccontextmanager
async def talk(server: RunningServer, **session: Any) -> AsyncIterator[Talk]:
    url = f"{server.url}/v1"
    client = AsyncOpenAI(api_key="none", base_url=url, websocket_base_url=url.replace("http", "ws"))
    heard = {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": None}
    async with client, client.realtime.connect(model=MODEL) as connection:
        assert (await connection.recv()).type == "session.created"
        settings = {"type": "realtime", "audio": {"input": heard, **session.pop("audio", {})}, **session}
        await connection.session.update(session=settings)
        assert (await connection.recv()).type == "session.updated"
        yield Talk(connection)


async def test_a_spoken_turn_is_answered_as_the_same_chat_is(server: RunningServer) -> None:
    """The words of a greedy thinker, over the socket and over HTTP, for one and the same recording."""
    async with talk(server, instructions="Listen.") as session:
        await session.say(sound(20))
        answer = await session.answer()

    data = base64.b64encode(recording(20)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    messages: Any = [{"role": "system", "content": "Listen."}, {"role": "user", "content": [part]}]
    async with AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1") as client:
        chat = await client.chat.completions.create(model=MODEL, messages=messages, modalities=["text"])

    assert answer.words
    assert answer.words == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens  # type: ignore[union-attr]
    assert answer.usage.input_token_details.audio_tokens > 0
    samples = np.frombuffer(answer.audio, "<i2")
    assert len(samples) > 1920
    assert np.abs(samples.astype(int)).max() > 50


async def test_a_second_turn_knows_the_first_and_sessions_know_nothing_of_each_other(server: RunningServer) -> None:
    async def two_turns(pitch: int) -> list[Answer]:
        async with talk(server) as session:
            found = []
            for step in range(2):
                await session.say(sound(pitch + step))
                found.append(await session.answer())
            return found

    alone = await two_turns(20)
    await asyncio.to_thread(server.wait_for_free_sessions)
    both = await asyncio.gather(two_turns(20), two_turns(31))

    assert alone[1].usage.input_tokens > alone[0].usage.input_tokens
    assert [turn.words for turn in both[0]] == [turn.words for turn in alone]
    assert [turn.usage.input_tokens for turn in both[0]] == [turn.usage.input_tokens for turn in alone]
    assert [turn.words for turn in both[1]] != [turn.words for turn in alone]


async def test_a_written_turn_may_be_answered_in_writing(server: RunningServer) -> None:
    async with talk(server) as session:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
        await session.session.conversation.item.create(item=item)
        answer = await session.answer(output_modalities=["text"])

    assert answer.words
    assert not answer.audio
    assert answer.usage.output_token_details.audio_tokens == 0


async def test_an_answer_that_is_cancelled_makes_room_for_the_next(server: RunningServer) -> None:
    async with talk(server) as session:
        await session.say(sound(20))
        cancelled = await session.answer(cancel_at=2)
        await session.say(sound(25))
        answer = await session.answer()

    assert cancelled.status in ("cancelled", "completed", "incomplete")  # a tiny answer may be over before the word comes
    assert answer.audio
    assert answer.words


async def test_the_voice_of_a_session_is_heard(server: RunningServer) -> None:
    voices = {}
    for name in ("ethan", "chelsie"):
        async with talk(server) as session:
            await session.say(sound(20))
            voices[name] = await session.answer(audio={"output": {"voice": name}})

    assert voices["ethan"].words == voices["chelsie"].words
    assert voices["ethan"].audio != voices["chelsie"].audio


async def test_what_the_user_said_is_written_down_as_over_http(server: RunningServer) -> None:
    """The words of the turn come from the same pipeline and the same prompt as `/v1/audio/transcriptions`."""
    audio = {"input": {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": None, "transcription": {}}}
    async with talk(server, audio=audio) as session:
        await session.say(sound(20))
        async with asyncio.timeout(120):
            async for event in session.session:
                assert event.type != "error", event
                if event.type == "conversation.item.input_audio_transcription.completed":
                    break

    async with AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1") as client:
        file = ("turn.wav", recording(20), "audio/wav")
        written = await client.audio.transcriptions.create(model=MODEL, file=file)

    assert event.transcript
    assert event.transcript == written.text
    assert event.usage.seconds == 1.0
