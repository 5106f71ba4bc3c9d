"""Streams of POST /v1/chat/completions against a scripted engine: order, shape, endings."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omni_server.app import build_app
from omni_server.context import ServerSettings
from omni_server.encoders import to_pcm16
from omni_server.fake_chat import CHUNKS, tone
from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
ANSWER = "Hello there, friend."
SPOKEN = to_pcm16(np.concatenate([tone(index) for index in range(CHUNKS)])).tobytes()
BOTH = ["text", "audio"]


async def chunks_of(client: Any, content: str = "hello", **fields: Any) -> list[dict[str, Any]]:
    """Return the chunks of a stream that ends as it should."""
    response = await client.chat(content, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = [part for part in response.text.split("\n\n") if part]
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def deltas(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def reasons(chunks: list[dict[str, Any]]) -> list[Any]:
    return [(choice["index"], choice["finish_reason"]) for chunk in chunks for choice in chunk["choices"]]


class TestText:
    """Streams of text."""

    async def test_pieces_come_one_by_one_between_a_role_and_a_reason(self, chatty: Any) -> None:
        """E04."""
        chunks = await chunks_of(chatty)

        assert deltas(chunks) == [
            {"role": "assistant", "content": ""},
            {"content": "Hello"},
            {"content": " there,"},
            {"content": " friend."},
            {},
        ]
        assert [reason for _, reason in reasons(chunks)] == [None] * 4 + ["stop"]
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert all("usage" not in chunk for chunk in chunks)

    async def test_usage_is_a_chunk_of_its_own_at_the_end(self, chatty: Any) -> None:
        chunks = await chunks_of(chatty, stream_options={"include_usage": True})

        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] == 14
        assert all(chunk["usage"] is None for chunk in chunks[:-1])

    async def test_calls_of_tools_are_deltas(self, chatty: Any) -> None:
        chunks = await chunks_of(chatty, "call")

        calls = [delta["tool_calls"][0] for delta in deltas(chunks) if "tool_calls" in delta]
        assert calls[0]["function"]["name"] == "weather"
        assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Paris"}'
        assert reasons(chunks)[-1] == (0, "tool_calls")

    async def test_log_probabilities_come_with_their_pieces(self, chatty: Any) -> None:
        chunks = await chunks_of(chatty, logprobs=True)

        told = [choice["logprobs"]["content"][0]["token"] for c in chunks for choice in c["choices"] if choice["logprobs"]]
        assert told == ["Hello", " there,"]

    async def test_several_answers_share_a_stream(self, chatty: Any) -> None:
        chunks = await chunks_of(chatty, n=2)

        for index in (0, 1):
            assert "".join(delta.get("content", "") for delta in deltas(chunks, index)) == ANSWER
        assert sorted(reason for reason in reasons(chunks) if reason[1]) == [(0, "stop"), (1, "stop")]

    async def test_a_piece_is_sent_before_the_next_one_is_made(
        self, talking: FakeEngine, call: Any, make_plugins: Callable[..., Any]
    ) -> None:
        """E04: the engine goes on only after the client has what it wrote."""
        app = build_app(talking, ServerSettings("m"), plugins=make_plugins())
        asked = call(app, {"messages": [{"role": "user", "content": "wait-later"}], "stream": True}, "/v1/chat/completions")
        seen = b""
        while b" there," not in seen:
            seen += (await asked.next()).get("body", b"")

        talking.go_on.set()
        rest = b"".join(message.get("body", b"") for message in await asked.ended())

        assert b"[DONE]" not in seen
        assert rest.endswith(b"data: [DONE]\n\n")


class TestSpeech:
    """Streams of text and audio."""

    async def test_order_is_id_transcript_audio_expiry_reason(self, chatty: Any) -> None:
        chunks = await chunks_of(chatty, modalities=BOTH, audio={"voice": "Bob", "format": "pcm16"})

        audio = [delta["audio"] for delta in deltas(chunks) if "audio" in delta]
        assert list(audio[0]) == ["id"]
        assert [next(iter(part)) for part in audio[1:]] == ["transcript"] * 3 + ["data"] * CHUNKS + ["expires_at"]
        assert "".join(part.get("transcript", "") for part in audio) == ANSWER
        assert b"".join(base64.b64decode(part["data"]) for part in audio if "data" in part) == SPOKEN
        assert all("content" not in delta for delta in deltas(chunks))
        assert reasons(chunks)[-1] == (0, "stop")

    async def test_the_joined_stream_is_the_whole_answer(self, chatty: Any) -> None:
        """B20, B21: no header in any piece."""
        whole = (await chatty.chat(modalities=BOTH, audio={"format": "pcm16"})).json()["choices"][0]["message"]["audio"]

        chunks = await chunks_of(chatty, modalities=BOTH)

        data = b"".join(base64.b64decode(d["audio"]["data"]) for d in deltas(chunks) if "data" in d.get("audio", {}))
        assert data == base64.b64decode(whole["data"])
        assert b"RIFF" not in data

    async def test_no_audio_is_a_clean_end(self, chatty: Any) -> None:
        """E04."""
        chunks = await chunks_of(chatty, "mute", modalities=BOTH, stream_options={"include_usage": True})

        assert not any("data" in delta.get("audio", {}) for delta in deltas(chunks))
        assert chunks[-1]["usage"]["completion_tokens_details"]["audio_tokens"] == 0
        assert reasons(chunks)[-1] == (0, "stop")

    async def test_modality_style_names_each_chunks_modality(self, chatty: Any) -> None:
        chunks = await chunks_of(chatty, modalities=BOTH, omni={"delta_style": "modality"})

        text = "".join(d.get("content", "") for d in deltas([c for c in chunks if c["modality"] == "text"]))
        audio = [d["content"] for d in deltas([c for c in chunks if c["modality"] == "audio"], 1) if d.get("content")]
        assert text == ANSWER
        assert b"".join(map(base64.b64decode, audio)) == SPOKEN
        assert [reason for reason in reasons(chunks) if reason[1]] == [(0, "stop"), (1, "stop")]


class TestFailures:
    """What goes wrong after the first chunk."""

    async def test_a_failure_before_anything_is_an_error_answer(self, chatty: Any) -> None:
        response = await chatty.chat("fail", stream=True)

        assert response.status_code == 503
        assert response.json()["error"]["type"] == "service_unavailable_error"

    async def test_a_later_failure_is_an_event_and_no_clean_end(self, chatty: Any) -> None:
        """B23."""
        response = await chatty.chat("fail-later", stream=True)

        last = [part for part in response.text.split("\n\n") if part][-1]
        assert response.status_code == 200
        assert '"error":{"message":"stage 0 (thinker)' in last
        assert "[DONE]" not in response.text
        assert 'finish_reason":"' not in response.text

    async def test_the_speech_meter_counts_a_failed_answer(self, chatty: Any, talking: FakeEngine) -> None:
        await chatty.chat("fail-later", stream=True, modalities=BOTH)
        await asyncio.sleep(0)

        text = (await chatty.get("/metrics")).text
        assert 'delivery="sse",ending="failed"' in text
