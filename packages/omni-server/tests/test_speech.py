"""POST /v1/audio/speech against a fake engine."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import av
import httpx
import numpy as np
import pytest

from omni_server import streaming
from omni_server.encoders import FORMATS, to_pcm16
from omni_server.fake_engine import TRAITS, FakeEngine

pytestmark = pytest.mark.anyio
FRAMES = 3 * 5
SAMPLES = FRAMES * 1920


def whole_tone(engine: FakeEngine) -> bytes:
    return to_pcm16(np.concatenate([engine.tone(index) for index in range(engine.chunks)])).tobytes()


class TestWholeBody:
    """One file."""

    async def test_default_is_a_wav_with_exact_sizes(self, client: Any, engine: FakeEngine, wav_reader: Any) -> None:
        response = await client.speak()

        assert response.status_code == 200
        assert response.headers["content-type"] == "audio/wav"
        assert response.headers["content-length"] == str(len(response.content)) == str(44 + 2 * SAMPLES)
        rate, channels, samples = wav_reader(response.content)
        assert (rate, channels) == (24000, 1)
        assert samples.tobytes() == whole_tone(engine)

    @pytest.mark.parametrize("channels", [1, 2])
    @pytest.mark.parametrize("name", sorted(set(FORMATS) - {"pcm"}))
    async def test_format_has_the_models_rate_and_channels(self, name: str, channels: int, make_client: Any) -> None:
        """B22: every format is decoded back."""
        engine = FakeEngine(traits=replace(TRAITS, channels=channels, sample_rate=48000 if channels == 2 else 24000))

        response = await make_client(engine).speak(response_format=name)

        assert response.headers["content-type"] == FORMATS[name].content_type
        with av.open(io.BytesIO(response.content)) as container:
            stream = container.streams.audio[0]
            frames = sum(frame.samples for frame in container.decode(stream))
            assert stream.channels == channels
            assert stream.rate == (48000 if name == "opus" else engine.traits.sample_rate)
            seconds = SAMPLES / engine.traits.sample_rate
            assert frames / stream.rate == pytest.approx(seconds, abs=0.15 if name == "aac" else 1e-9)

    @pytest.mark.parametrize("delivery", ["audio", "sse"])
    @pytest.mark.parametrize("name", sorted(set(FORMATS) - {"flac"}))
    async def test_stereo_at_48_khz_is_streamed_as_such(self, name: str, delivery: str, make_client: Any, events: Any) -> None:
        """Issue 6: the left channel is louder, and stays the left one."""
        engine = FakeEngine(traits=replace(TRAITS, channels=2, sample_rate=48000))

        response = await make_client(engine).speak(response_format=name, stream_format=delivery)

        assert (response.headers["x-omni-sample-rate"], response.headers["x-omni-channels"]) == ("48000", "2")
        data = response.content
        if delivery == "sse":
            parts = [event["audio"] for event in events(response.text) if event["type"] == "speech.audio.delta"]
            data = b"".join(map(base64.b64decode, parts))
        if name == "pcm":
            assert data == whole_tone(engine)
            return
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.audio[0]
            assert (stream.rate, stream.channels) == (48000, 2)
            resampler = av.AudioResampler(format="flt")
            frames = [part for frame in container.decode(stream) for part in resampler.resample(frame)]
        samples = np.concatenate([frame.to_ndarray().reshape(-1, 2) for frame in frames])
        assert len(samples) == pytest.approx(SAMPLES, abs=0.15 * 48000)
        left, right = np.sqrt((samples**2).mean(axis=0))
        assert left / right == pytest.approx(2.0, rel=0.05)

    async def test_pcm_is_little_endian_16_bit_and_says_its_rate(self, client: Any, engine: FakeEngine) -> None:
        response = await client.speak(response_format="pcm")

        assert response.headers["content-type"] == "audio/pcm"
        assert response.headers["x-omni-sample-rate"] == "24000"
        assert response.headers["x-omni-channels"] == "1"
        assert response.content == whole_tone(engine)

    async def test_usage_and_finish_reason_are_headers(self, client: Any) -> None:
        """AP-05, E02."""
        headers = (await client.speak()).headers

        wanted = {"INPUT": "7", "OUTPUT": "15", "TOTAL": "22", "INPUT-TEXT": "7", "INPUT-AUDIO": "0"}
        assert {name: headers[f"X-VLLM-OMNI-{name}-TOKENS"] for name in wanted} == wanted
        assert headers["x-omni-finish-reason"] == "stop"

    @pytest.mark.parametrize("name", sorted(FORMATS))
    async def test_model_that_says_nothing_gives_a_valid_empty_file(self, name: str, client: Any, wav_reader: Any) -> None:
        response = await client.speak("nothing", response_format=name)

        assert response.status_code == 200
        if name == "wav":
            assert len(wav_reader(response.content)[2]) == 0
        elif name == "pcm":
            assert response.content == b""
        else:
            with av.open(io.BytesIO(response.content)) as container:
                assert sum(frame.samples for frame in container.decode(audio=0)) < 5000

    async def test_other_sample_rate_gives_an_exact_fraction(self, client: Any, wav_reader: Any) -> None:
        """B22."""
        rate, _, samples = wav_reader((await client.speak(sample_rate=8000)).content)

        assert (rate, len(samples)) == (8000, SAMPLES // 3)

    async def test_speed_changes_the_duration(self, client: Any, wav_reader: Any) -> None:
        _, _, samples = wav_reader((await client.speak(speed=2)).content)

        assert len(samples) == pytest.approx(SAMPLES / 2, rel=0.05)

    @pytest.mark.parametrize("delivery", ["whole", "audio", "sse"])
    async def test_failure_before_any_audio_is_an_error_answer(
        self, delivery: str, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        fields = {} if delivery == "whole" else {"stream_format": delivery}

        with caplog.at_level(logging.ERROR):
            response = await client.speak("fail", **fields)

        assert response.status_code == 503
        assert response.headers["content-type"] == "application/json"
        assert response.headers["retry-after"]
        error = response.json()["error"]
        assert error["type"] == "service_unavailable_error"
        assert "stage 0 (talker)" in error["message"]
        assert len(caplog.records) == 1

    async def test_failure_after_some_audio_is_an_error_answer_too(self, client: Any) -> None:
        assert (await client.speak("fail-later")).status_code == 503


class TestStreaming:
    """Bytes and events while they are made."""

    async def test_audio_stream_is_the_whole_file_without_its_sizes(self, client: Any, engine: FakeEngine) -> None:
        """B20, B21."""
        response = await client.speak(stream_format="audio")

        assert response.headers["content-type"] == "audio/wav"
        assert "content-length" not in response.headers
        assert response.content[4:8] == response.content[40:44] == b"\xff\xff\xff\xff"
        assert response.content.count(b"RIFF") == 1
        assert response.content[44:] == whole_tone(engine)

    @pytest.mark.parametrize("rate", [8000, 24000])
    async def test_streamed_pcm_equals_the_whole(self, rate: int, client: Any, events: Any) -> None:
        whole = await client.speak(response_format="pcm", sample_rate=rate)
        streamed = await client.speak(response_format="pcm", sample_rate=rate, stream_format="audio")
        *deltas, _ = events((await client.speak(response_format="pcm", sample_rate=rate, stream=True)).text)

        assert streamed.content == whole.content
        assert streamed.headers["x-omni-sample-rate"] == str(rate)
        assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == whole.content

    async def test_events_are_deltas_and_one_done_with_usage(self, client: Any, engine: FakeEngine, events: Any) -> None:
        """AP-04."""
        response = await client.speak(stream_format="sse")

        assert response.headers["content-type"].startswith("text/event-stream")
        *deltas, done = events(response.text)
        assert [event["type"] for event in deltas] == ["speech.audio.delta"] * engine.chunks
        assert {event["response_format"] for event in deltas} == {"wav"}
        audio = b"".join(base64.b64decode(event["audio"]) for event in deltas)
        assert audio.count(b"RIFF") == 1
        assert audio[44:] == whole_tone(engine)
        assert done == {
            "type": "speech.audio.done",
            "usage": {
                "input_tokens": 7,
                "output_tokens": 15,
                "total_tokens": 22,
                "input_token_details": {"text_tokens": 7, "audio_tokens": 0},
            },
            "finish_reason": "stop",
        }

    @pytest.mark.parametrize("name", ["mp3", "opus", "aac"])
    async def test_compressed_formats_stream(self, name: str, client: Any) -> None:
        response = await client.speak(stream_format="audio", response_format=name)

        with av.open(io.BytesIO(response.content)) as container:
            stream = container.streams.audio[0]
            frames = sum(frame.samples for frame in container.decode(stream))
            assert frames / stream.rate == pytest.approx(SAMPLES / 24000, abs=0.2)

    async def test_first_audio_is_sent_before_the_model_has_ended(self, call: Any, client: Any, engine: FakeEngine) -> None:
        """E12."""
        request = call(client.app, {"input": "wait-later", "stream_format": "audio"})

        assert (await request.next())["status"] == 200
        body = (await request.next())["body"]
        assert len(body) == 44 + 2 * 5 * 1920
        assert not request.task.done()
        engine.go_on.set()
        assert (await request.ended())[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert engine.aborted == []

    async def test_failure_in_an_audio_stream_is_never_a_clean_end(
        self, call: Any, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """B23."""
        with caplog.at_level(logging.WARNING):
            messages = await call(client.app, {"input": "fail-later", "stream_format": "audio"}).ended()

        assert messages[-1]["more_body"] is True
        assert "stage 1 (code2wav)" in caplog.text

    async def test_failure_in_an_event_stream_is_an_event(self, client: Any, events: Any) -> None:
        """AP-04, B23."""
        *deltas, last = events((await client.speak("fail-later", stream=True)).text)

        assert len(deltas) == 1
        assert last["type"] == "speech.audio.error"
        assert last["error"]["type"] == "service_unavailable_error"
        assert last["error"]["partial_audio"] is True
        assert last["error"]["action"] == "discard"

    async def test_stream_without_audio_ends_cleanly(self, client: Any, events: Any) -> None:
        audio = await client.speak("nothing", stream_format="audio")
        sse = events((await client.speak("nothing", stream=True, response_format="pcm")).text)

        assert (audio.status_code, len(audio.content)) == (200, 44)
        assert [event["type"] for event in sse] == ["speech.audio.done"]


class TestDisconnect:
    """A client that leaves ends its request in the engine."""

    @pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream_format": "audio"}], ids=["whole", "sse", "audio"])
    async def test_leaving_while_waiting_aborts(
        self, fields: dict[str, Any], call: Any, client: Any, engine: FakeEngine
    ) -> None:
        request = call(client.app, {"input": "stall", **fields})
        await asyncio.wait_for(engine.working.wait(), 10)

        request.leave.set()

        assert await request.ended() == []
        assert engine.aborted == engine.ids

    @pytest.mark.parametrize("stream_format", ["sse", "audio"])
    async def test_leaving_in_the_middle_aborts(self, stream_format: str, call: Any, client: Any, engine: FakeEngine) -> None:
        request = call(client.app, {"input": "endless", "stream_format": stream_format})
        for _ in range(4):
            await request.next()

        request.leave.set()
        await request.ended()

        assert engine.aborted == engine.ids

    async def test_client_that_stops_reading_is_given_up(
        self, call: Any, client: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streaming, "SEND_STALL_S", 0.05)
        request = call(client.app, {"input": "endless", "stream_format": "audio"})
        await request.next()

        request.stalled = True
        await asyncio.wait_for(request.task, 10)

        assert engine.aborted == engine.ids

    async def test_cancelled_answer_aborts(self, call: Any, client: Any, engine: FakeEngine) -> None:
        """What uvicorn does to requests that outlive the time to drain."""
        request = call(client.app, {"input": "stall"})
        await asyncio.wait_for(engine.working.wait(), 10)

        request.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request.task

        assert engine.aborted == engine.ids


class TestChecks:
    """What is refused, and what reaches the engine."""

    @pytest.mark.parametrize("text", ["", " \t\n"])
    async def test_empty_text(self, text: str, client: Any) -> None:
        assert "empty" in await client.refused(400, "input", input=text)

    async def test_unknown_voice_lists_the_known(self, client: Any) -> None:
        """B24."""
        assert "Vivian, Ryan" in await client.refused(400, "voice", voice="nobody")

    async def test_unknown_model(self, client: Any) -> None:
        response = await client.speak(model="gpt-4o-mini-tts")

        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "org/fake-tts" in error["message"]

    @pytest.mark.parametrize("name", ["org/fake-tts", "fake-tts", None])
    async def test_long_and_short_model_name_answer(self, name: str | None, client: Any) -> None:
        """E08."""
        assert (await client.speak(model=name)).status_code == 200

    async def test_served_names_replace_the_models_own(self, make_client: Any) -> None:
        client = make_client(served_model_name=("tts", "voice"))

        assert (await client.speak(model="voice")).status_code == 200
        await client.refused(404, "model", model="org/fake-tts")

    async def test_model_that_does_not_speak(self, make_client: Any) -> None:
        await make_client(FakeEngine(speaks=False)).refused(400, "model")

    async def test_wrong_number_of_sampling_objects(self, client: Any) -> None:
        await client.refused(400, "sampling_params_list", sampling_params_list=[{}])

    async def test_sampling_objects_reach_the_engine(self, client: Any, engine: FakeEngine) -> None:
        await client.speak(sampling_params_list=[{"temperature": 0}, {}])

        assert engine.sampling == [[{"temperature": 0}, {}]]

    @pytest.mark.parametrize("rate", [44100, 12000, 7])
    async def test_sample_rate_that_is_not_offered(self, rate: int, client: Any) -> None:
        assert "8000, 24000" in await client.refused(400, "sample_rate", sample_rate=rate)

    async def test_speed_cannot_be_streamed(self, client: Any) -> None:
        await client.refused(400, "speed", speed=1.5, stream=True)

    async def test_flac_cannot_be_streamed(self, client: Any) -> None:
        assert "wav" in await client.refused(400, "response_format", response_format="flac", stream=True)

    async def test_format_that_cannot_carry_the_rate(self, make_client: Any) -> None:
        engine = FakeEngine(traits=replace(TRAITS, sample_rate=44100))

        await make_client(engine).refused(400, "response_format", response_format="opus")

    async def test_refused_requests_do_not_reach_the_engine(self, client: Any, engine: FakeEngine) -> None:
        await client.refused(400, "stream", stream="yes")
        await client.refused(400, "ref_audio", ref_audio="data:,x")
        await client.refused(400, "nothing_like_it", nothing_like_it=1)

        assert engine.ids == []

    async def test_every_field_reaches_the_prompt(self, client: Any, engine: FakeEngine, data_uri: str) -> None:
        """AP-01."""
        fields = {
            "voice": "Ryan",
            "language": "English",
            "instructions": "calmly",
            "task_type": "Base",
            "ref_audio": data_uri,
            "ref_text": "the words",
            "x_vector_only_mode": False,
            "non_streaming_mode": True,
            "max_new_tokens": 12,
            "seed": 3,
            "initial_codec_chunk_frames": 4,
        }

        response = await client.speak("hello", **fields, extra_params={"a": 1})

        assert response.status_code == 200, response.text
        (prompt,) = engine.prompts
        assert prompt.text == "hello"
        assert prompt.extra == {"a": 1}
        assert (prompt.ref_audio.sample_rate, len(prompt.ref_audio.samples)) == (16000, 32000)
        for name in set(fields) - {"ref_audio"}:
            assert getattr(prompt, name) == fields[name], name

    async def test_embedding_reaches_the_prompt(self, client: Any, engine: FakeEngine) -> None:
        await client.speak(speaker_embedding=[0.5, 1])

        assert engine.prompts[0].speaker_embedding == (0.5, 1.0)

    async def test_reference_audio_may_be_a_list_of_one(self, client: Any, engine: FakeEngine, data_uri: str) -> None:
        assert (await client.speak(ref_audio=[data_uri])).status_code == 200
        await client.refused(400, "ref_audio", ref_audio=[data_uri, data_uri])
        await client.refused(400, "ref_audio", ref_audio=[])

    async def test_second_recording_reaches_a_model_of_dialogues_and_no_other(
        self, client: Any, make_client: Any, data_uri: str
    ) -> None:
        """AP-01."""
        engine = FakeEngine(traits=replace(TRAITS, accepts=frozenset({"ref_audio", "ref_audio_2"})))

        assert (await make_client(engine).speak(ref_audio=data_uri, ref_audio_2=data_uri)).status_code == 200
        assert engine.prompts[0].ref_audio_2 is not None
        assert len(engine.prompts[0].ref_audio_2.samples) == 32000
        await make_client(engine).refused(400, "ref_audio_2", ref_audio_2="data:,x")
        await client.refused(400, "ref_audio_2", ref_audio_2=data_uri)

    async def test_reference_audio_for_a_model_that_does_not_clone(self, make_client: Any, data_uri: str) -> None:
        engine = FakeEngine(traits=replace(TRAITS, clones=False))

        await make_client(engine).refused(400, "ref_audio", ref_audio=data_uri)

    async def test_wrong_output_of_the_engine_is_not_sent_with_a_wrong_label(self, make_client: Any) -> None:
        """B22."""
        engine = FakeEngine()
        client = make_client(engine)
        engine.tone = lambda index: np.zeros((960, 2), np.float32)  # type: ignore[method-assign]

        response = await client.speak()

        assert response.status_code == 500
        assert "960x2" in response.json()["error"]["message"]


class TestRequestIds:
    """B19."""

    async def test_two_requests_with_one_id_do_not_meet(self, client: Any, engine: FakeEngine) -> None:
        headers = {"X-Request-Id": "same"}

        first, second = await asyncio.gather(client.speak("one", headers=headers), client.speak("two", headers=headers))

        assert first.headers["x-request-id"] == second.headers["x-request-id"] == "same"
        assert first.status_code == second.status_code == 200
        assert len(set(engine.ids)) == 2

    @pytest.mark.parametrize("given", ["", "   "])
    async def test_empty_id_is_replaced(self, given: str, client: Any) -> None:
        assert len((await client.speak(headers={"X-Request-Id": given})).headers["x-request-id"]) == 32

    async def test_huge_id_is_cut(self, client: Any) -> None:
        assert (await client.speak(headers={"X-Request-Id": "x" * 100_000})).headers["x-request-id"] == "x" * 128


async def test_many_requests_at_once_get_their_own_answers(make_client: Callable[..., Any]) -> None:
    client = make_client(FakeEngine(chunks=2))

    answers: list[httpx.Response] = await asyncio.gather(
        *(client.speak(f"text {index}", response_format=name) for index in range(8) for name in ("wav", "mp3"))
    )

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 2
