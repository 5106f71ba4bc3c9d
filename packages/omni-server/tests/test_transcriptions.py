"""POST /v1/audio/transcriptions and translations against a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from omni_server.fake_chat import WRITING
from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
ANSWER = "Hello there, friend."
PLACE = "messages[0].content[0].input_audio"


async def send(client: Any, data: bytes, path: str = "transcriptions", **fields: str) -> httpx.Response:
    files = {"file": ("a.wav", data, "audio/wav")}
    response: httpx.Response = await client.post(f"/v1/audio/{path}", data=fields, files=files)
    return response


async def test_the_recording_reaches_the_model_with_what_is_asked(chatty: Any, talking: FakeEngine, wav_maker: Any) -> None:
    data = wav_maker(1.0)

    answer = await send(chatty, data, language="de", prompt="names: Ada", seed="3", max_completion_tokens="9")

    assert answer.json()["text"] == ANSWER
    assert answer.json()["usage"]["input_token_details"] == {"text_tokens": 7, "audio_tokens": 4}
    prompt = talking.prompts[0]
    assert prompt["media"] == {PLACE: data}
    asked = prompt["chat"]["messages"][0]["content"][1]["text"]
    assert asked == "Transcribe the audio into text. The language of the audio is de. Context: names: Ada"
    assert talking.sampling[0][0] == {"temperature": 0.0, "seed": 3, "max_tokens": 9}
    assert talking.wanted == [("text",)]


async def test_a_translation_is_asked_for_in_english(chatty: Any, talking: FakeEngine, wav_maker: Any) -> None:
    answer = await send(chatty, wav_maker(1.0), "translations", response_format="verbose_json")

    assert answer.json()["task"] == "translate"
    assert answer.json()["language"] == "english"
    assert "English" in talking.prompts[0]["chat"]["messages"][0]["content"][1]["text"]


async def test_text_is_plain_and_verbose_json_has_the_duration(chatty: Any, wav_maker: Any) -> None:
    text = await send(chatty, wav_maker(1.0), response_format="text")
    verbose = await send(chatty, wav_maker(1.5), response_format="verbose_json", language="fr")

    assert (text.text, text.headers["content-type"]) == (ANSWER + "\n", "text/plain; charset=utf-8")
    assert (verbose.json()["duration"], verbose.json()["language"], verbose.json()["text"]) == (1.5, "fr", ANSWER)


async def test_a_duration_that_cannot_be_read_is_refused_before_the_model_works(chatty: Any, talking: FakeEngine) -> None:
    answer = await send(chatty, b"a container that only the model reads", response_format="verbose_json")

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
    assert not talking.prompts


async def test_a_stream_has_deltas_and_the_whole_text_at_its_end(chatty: Any, wav_maker: Any) -> None:
    answer = await send(chatty, wav_maker(1.0), stream="true")

    events = [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]
    assert "".join(event["delta"] for event in events[:-1]) == ANSWER
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == ANSWER


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "srt"}, "response_format"),
        ({"response_format": "vtt"}, "response_format"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"response_format": "xml"}, "response_format"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "3"}, "temperature"),
        ({"stream": "true", "response_format": "text"}, "response_format"),
        ({"no_such": "1"}, "no_such"),
    ],
    ids=str,
)
async def test_what_cannot_be_made_is_refused_with_its_field(
    fields: dict[str, str], param: str, chatty: Any, talking: FakeEngine, wav_maker: Any
) -> None:
    answer = await send(chatty, wav_maker(1.0), **fields)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert talking.ids == []


@pytest.mark.parametrize(("data", "text"), [(b"", "empty"), (b"x" * 2000, "more than 1000 bytes")])
async def test_a_file_of_the_wrong_length_is_refused(data: bytes, text: str, talking: FakeEngine, make_client: Any) -> None:
    answer = await send(make_client(talking, max_media_bytes=1000), data)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "file"
    assert text in answer.json()["error"]["message"]


async def test_a_recording_without_samples_is_refused(chatty: Any, wav_maker: Any) -> None:
    answer = await send(chatty, wav_maker(0.0))

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "file"


async def test_no_file_or_no_form_is_refused(chatty: Any) -> None:
    missing = await chatty.post("/v1/audio/transcriptions", files={"model": (None, "org/fake-tts")})
    no_form = await chatty.post("/v1/audio/transcriptions", json={"file": "x"})

    assert (missing.status_code, no_form.status_code) == (400, 400)
    assert missing.json()["error"]["param"] == "file"


async def test_a_model_that_does_not_hear_refuses(make_client: Any, client: Any, wav_maker: Any) -> None:
    deaf = await send(make_client(FakeEngine(chat=WRITING, stages=("thinker",))), wav_maker(1.0))
    mute = await send(client, wav_maker(1.0))

    assert deaf.status_code == mute.status_code == 400
    assert "does not hear" in deaf.json()["error"]["message"]


async def test_a_fault_that_the_stage_finds_in_the_recording_names_the_file(
    chatty: Any, wav_maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omni_core.errors import RequestError
    from omni_server.fake_chat import FakeChat

    async def refuse(*_: Any) -> Any:
        raise RequestError(f"`{PLACE}` is not audio that can be read", param=PLACE)
        yield

    monkeypatch.setattr(FakeChat, "outputs", refuse)

    for fields in ({}, {"stream": "true"}):
        answer = await send(chatty, wav_maker(1.0), **fields)

        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": "`file` is not audio that can be read",
            "type": "invalid_request_error",
            "param": "file",
            "code": None,
        }
