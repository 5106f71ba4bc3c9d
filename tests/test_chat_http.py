"""Conversations over HTTP with all three stages of a tiny Qwen3-Omni: the reference's audio, the official client, bad input."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import warnings
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types import CompletionUsage
from openai.types.audio import Transcription, TranscriptionVerbose
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from omni_core.testing.waiting import wait_until
from omni_server.testing import RunningServer

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

SAMPLES_PER_FRAME, CUT = 1920, 555
"""What the codec makes of T frames: 1920 T - 555 samples (golden/README.md)."""
ONE_PAYLOAD = 25
"""Frames up to which the codec sees them in the reference's own window."""
GREEDY = {"temperature": 0.0, "top_k": -1, "top_p": 1.0}
BOTH = ["text", "audio"]


def golden_cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "golden.json").read_text())["cases"]
    return found


def golden_body(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Return a case as a client sends it, greedy in both stages that sample."""
    messages = []
    for message in case["request"]["messages"]:
        parts = []
        for part in message["content"]:
            if part["type"] == "audio":
                part = {
                    "type": "input_audio",
                    "input_audio": {"data": b64((folder / part["audio"]).read_bytes()), "format": "wav"},
                }
            elif part["type"] == "image":
                data = b64((folder / part["image"]).read_bytes())
                part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
            parts.append(part)
        messages.append({"role": message["role"], "content": parts})
    thinker = {**GREEDY, "repetition_penalty": 1.0, "max_tokens": case["max_thinker_tokens"]}
    ends = case["stop_reason"] == "eos"
    talker = {**GREEDY, "repetition_penalty": case["repetition_penalty"], "max_tokens": case["max_frames"] + ends}
    return {"messages": messages, "sampling_params_list": [thinker, talker, {}], "audio": {"voice": case["request"]["speaker"]}}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def make_wav(samples: int, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((8000 * np.sin(np.arange(samples) / 9)).astype("<i2").tobytes())
    return file.getvalue()


def post(server: RunningServer, content: Any = "Hello.", **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0.0, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


def ask(server: RunningServer, content: Any = "Hello.", **fields: Any) -> dict[str, Any]:
    """Return an answer that must be good, in a form that the official client's types accept."""
    response = post(server, content, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    ChatCompletion.model_validate(answer)
    return answer


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the chunks of a stream that ends as it should."""
    assert response.status_code == 200, response.text
    parts = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    chunks = [json.loads(part) for part in parts[:-1]]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    return chunks


def streamed_audio(chunks: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    parts = [choice["delta"].get("audio", {}) for chunk in chunks for choice in chunk["choices"]]
    return np.frombuffer(b"".join(base64.b64decode(part["data"]) for part in parts if "data" in part), "<i2")


def whole_audio(answer: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(answer["choices"][0]["message"]["audio"]["data"]), "<i2")


def is_alive(server: RunningServer) -> None:
    assert ask(server, max_tokens=2)["choices"][0]["message"]["content"] is not None
    assert httpx.get(f"{server.url}/health", timeout=20).status_code == 200


class TestParity:
    """The reference's text and audio, input by input, alone and at once, streamed and not."""

    def _speak(self, server: RunningServer, folder: Path, case: dict[str, Any], **fields: Any) -> httpx.Response:
        body = golden_body(folder, case)
        body["audio"]["format"] = "pcm16"
        body |= {"modalities": BOTH, **fields}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)

    def test_every_case_alone_at_once_and_streamed_is_the_references(
        self, chat_server: RunningServer, chat_folder: Path
    ) -> None:
        arrays = np.load(chat_folder / "golden.npz")
        cases = golden_cases(chat_folder)
        with ThreadPoolExecutor(len(cases)) as pool:
            together = list(pool.map(lambda case: self._speak(chat_server, chat_folder, case), cases))

        for case, at_once in zip(cases, together, strict=True):
            alone = self._speak(chat_server, chat_folder, case)
            assert alone.status_code == at_once.status_code == 200, alone.text
            samples = whole_audio(alone.json())
            streamed = streamed_audio(chunks_of(self._speak(chat_server, chat_folder, case, stream=True)))

            assert len(samples) == SAMPLES_PER_FRAME * case["num_frames"] - CUT, case["id"]
            assert alone.json()["usage"]["prompt_tokens"] == len(case["prompt_token_ids"])
            assert alone.json()["usage"]["completion_tokens_details"]["text_tokens"] == len(case["thinker_tokens"])
            assert alone.json()["usage"]["completion_tokens_details"]["audio_tokens"] == case["num_frames"]
            # Two steps of 16 bits: what shares a step of the codec is rounded otherwise.
            for other in (whole_audio(at_once.json()), streamed):
                assert len(other) == len(samples)
                assert np.abs(other.astype(int) - samples).max() <= 2, case["id"]
            if case["num_frames"] <= ONE_PAYLOAD:
                wanted = arrays[f"{case['id']}__wav"]
                assert np.abs(samples / 32767 - wanted).max() < 1e-3, case["id"]

    def test_text_alone_is_the_same_text(self, chat_server: RunningServer, chat_folder: Path) -> None:
        for case in golden_cases(chat_folder)[:3]:
            body = golden_body(chat_folder, case)
            spoken = self._speak(chat_server, chat_folder, case).json()
            del body["audio"]

            written = httpx.post(f"{chat_server.url}/v1/chat/completions", json=body, timeout=120).json()

            text = written["choices"][0]["message"]["content"]
            assert text == spoken["choices"][0]["message"]["audio"]["transcript"]
            assert "audio" not in written["choices"][0]["message"]
            assert written["usage"]["completion_tokens_details"]["audio_tokens"] == 0

    def test_text_alone_puts_nothing_on_the_way_to_the_talker(self, chat_server: RunningServer, chat_folder: Path) -> None:
        case = golden_cases(chat_folder)[0]
        body = golden_body(chat_folder, case)
        self._speak(chat_server, chat_folder, case)
        spoken = _puts(chat_server)
        del body["audio"]

        answer = httpx.post(f"{chat_server.url}/v1/chat/completions", json=body, timeout=120).json()

        assert answer["usage"]["completion_tokens"] > 0
        assert min(spoken) > 0
        assert _puts(chat_server) == spoken


def _puts(server: RunningServer) -> tuple[float, ...]:
    """Return how often and how many bytes the thinker has put on the way to the talker until now.

    A stage tells its numbers from time to time, all at once, and on the way that its answers take. So the first ones that
    change from here on, with the tokens of a request for text alone, have what belongs to earlier answers.
    """
    (before,) = _of_thinker(server, "omni_tokens_total")
    ask(server, max_tokens=2)
    wait_until(lambda: _of_thinker(server, "omni_tokens_total") > (before,), "the thinker to tell its numbers", 60.0)
    return _of_thinker(server, "omni_transfer_seconds_count", "omni_transfer_bytes_total")


def _of_thinker(server: RunningServer, *names: str) -> tuple[float, ...]:
    lines = httpx.get(f"{server.url}/metrics", timeout=20).text.splitlines()
    own = [line for line in lines if 'stage="0"' in line and 'operation="get"' not in line]
    return tuple(sum(float(line.split()[-1]) for line in own if line.startswith(f"{name}{{")) for name in names)


class TestOfficialClient:
    """OpenAI's own client, sync and async, and its types."""

    @pytest.fixture
    def client(self, chat_server: RunningServer) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0)

    @pytest.fixture
    def model(self, client: openai.OpenAI) -> str:
        return client.models.list().data[0].id

    def test_text_and_audio_have_their_types(self, client: openai.OpenAI, model: str) -> None:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Say hello."}],
            modalities=["text", "audio"],
            audio={"voice": "ethan", "format": "wav"},
            max_completion_tokens=6,
            seed=1,
        )

        audio = answer.choices[0].message.audio
        assert audio is not None
        with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
            assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
            assert file.getnframes() > 0
        assert isinstance(answer.usage, CompletionUsage)
        assert answer.usage.completion_tokens_details is not None
        assert answer.usage.completion_tokens_details.audio_tokens
        # The answer goes back as it came: this server reads its transcript.
        again = client.chat.completions.create(
            model=model,
            messages=[
                {"role": "user", "content": "Say hello."},
                answer.choices[0].message,  # type: ignore[list-item]
                {"role": "user", "content": "Once more."},
            ],
            max_completion_tokens=2,
        )
        assert again.choices[0].message.content is not None

    def test_a_stream_is_read_piece_by_piece(self, client: openai.OpenAI, model: str) -> None:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Hi"}],
            modalities=["text", "audio"],
            audio={"voice": "ethan", "format": "pcm16"},
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=6,
            temperature=0,
        )

        chunks = list(stream)

        audio = [part for c in chunks if c.choices and (part := c.choices[0].delta.audio) is not None]
        assert audio[0].id
        assert "".join(part.transcript or "" for part in audio)
        assert b"".join(base64.b64decode(part.data or "") for part in audio)
        assert audio[-1].expires_at
        assert chunks[-1].usage is not None
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")

    def test_the_async_client_works_alike(self, chat_server: RunningServer, model: str) -> None:
        async def talk() -> tuple[str | None, str]:
            async with openai.AsyncOpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0) as client:
                whole = await client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "Hi"}], temperature=0, max_completion_tokens=6
                )
                stream = await client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": "Hi"}],
                    temperature=0,
                    max_completion_tokens=6,
                    stream=True,
                )
                pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
                return whole.choices[0].message.content, "".join(pieces)

        whole, streamed = asyncio.run(talk())

        assert whole == streamed

    def test_tools_can_be_asked_for_by_name(self, client: openai.OpenAI, model: str) -> None:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
            max_completion_tokens=60,
            temperature=0,
        )

        calls = answer.choices[0].message.tool_calls
        assert calls
        assert calls[0].type == "function"
        assert calls[0].function.name == "weather"

    def test_images_sounds_and_log_probabilities_work(self, client: openai.OpenAI, model: str, chat_folder: Path) -> None:
        image = b64((chat_folder / "inputs" / "in_a.png").read_bytes())
        sound = b64((chat_folder / "inputs" / "in_a.wav").read_bytes())
        answer = client.chat.completions.create(
            model=model,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
                        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
                        {"type": "text", "text": "Describe both."},
                    ],
                }
            ],
            logprobs=True,
            top_logprobs=2,
            max_completion_tokens=4,
            temperature=0,
        )

        assert answer.choices[0].logprobs is not None
        content = answer.choices[0].logprobs.content
        assert content is not None
        assert len(content) == answer.usage.completion_tokens if answer.usage else False
        assert all(len(entry.top_logprobs) == 2 for entry in content)
        details = answer.usage.prompt_tokens_details if answer.usage else None
        assert details is not None
        assert details.audio_tokens

    def test_recordings_are_written_down(self, client: openai.OpenAI, model: str, chat_folder: Path) -> None:
        path = chat_folder / "inputs" / "in_a.wav"

        plain = client.audio.transcriptions.create(model=model, file=path, extra_body={"max_completion_tokens": 6})
        verbose = client.audio.transcriptions.create(
            model=model, file=path, response_format="verbose_json", extra_body={"max_completion_tokens": 6}
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # OpenAI's own model for it is old
            english = client.audio.translations.create(model=model, file=path)

        assert isinstance(plain, Transcription)
        assert isinstance(verbose, TranscriptionVerbose)
        assert verbose.duration == pytest.approx(1.5)
        assert english.text is not None

    def test_errors_have_its_classes(self, client: openai.OpenAI, model: str) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=[])
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.BadRequestError, match="turns"):
            client.completions.create(model=model, prompt="x")

        assert caught.value.param == "messages"


PNG = "data:image/png;base64,"
TEXT = {"type": "text", "text": "What is it?"}


def part(kind: str, value: str) -> dict[str, Any]:
    inner = {"data": value, "format": "wav"} if kind == "input_audio" else {"url": value}
    return {"type": kind, kind: inner}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([TEXT, part("image_url", PNG + b64(b"no image"))], "[1].image_url"),
        ([part("image_url", PNG + "A" * 41 + "!"), TEXT], "[0].image_url"),
        ([part("input_audio", b64(make_wav(0))), TEXT], "[0].input_audio"),
        ([part("input_audio", b64(make_wav(1))), TEXT], "[0].input_audio"),
        ([part("input_audio", b64(b"RIFF" * 9)), TEXT], "[0].input_audio"),
        ([part("audio_url", "data:audio/wav;base64," + b64(make_wav(0))), TEXT], "[0].audio_url"),
        ([part("video_url", "data:video/mp4;base64," + b64(b"no video" * 99)), TEXT], "[0].video_url"),
        ([part("image_url", "http://127.0.0.1:9/x.png"), TEXT], "[0].image_url"),
        ([part("image_url", "/etc/passwd"), TEXT], "[0].image_url"),
        ([{"type": "smell"}], "[0]"),
        ([], ""),
    ],
    ids=["corrupt", "base64", "0 samples", "1 sample", "no wav", "url 0 samples", "video", "host", "path", "kind", "none"],
)
def test_a_bad_part_is_named_and_the_engine_lives(chat_server: RunningServer, content: Any, place: str) -> None:
    response = post(chat_server, content)

    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == f"messages[0].content{place}"
    is_alive(chat_server)


def test_a_data_uri_of_100_mb_is_refused(chat_server: RunningServer) -> None:
    response = post(chat_server, [part("image_url", PNG + "A" * 100_000_000)])

    assert response.status_code == 413
    is_alive(chat_server)


def test_a_data_uri_longer_than_media_may_be_is_named(chat_server: RunningServer) -> None:
    response = post(chat_server, [part("image_url", PNG + "A" * 36_000_000)])

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[0].image_url"
    is_alive(chat_server)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": ["smell"]}, "modalities"),
        ({"modalities": BOTH, "audio": {"voice": "nobody"}}, "audio.voice"),
        ({"messages": []}, "messages"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "odd"}}}},
            "response_format",
        ),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "messages"),
    ],
    ids=str,
)
def test_a_bad_field_is_named_and_the_engine_lives(chat_server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = post(chat_server, **fields)

    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    is_alive(chat_server)


@pytest.mark.parametrize("modalities", [["text"], BOTH])
def test_the_context_limit_is_exact(chat_server: RunningServer, modalities: list[str]) -> None:
    """Under, at and over it: with the answer, and with the prompt alone."""
    prompt = ask(chat_server, max_tokens=1)["usage"]["prompt_tokens"]
    room = 1024 - prompt
    sampling = [{"stop": ["a", "e", "i", "o", " "]}, {"max_tokens": 2}, {}]

    for most in (room - 1, room):
        ask(chat_server, max_tokens=most, modalities=modalities, sampling_params_list=sampling)
    over = post(chat_server, max_tokens=room + 1, modalities=modalities)
    long = post(chat_server, "word " * 2000, modalities=modalities)

    for response, param in ((over, "max_tokens"), (long, "messages")):
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert response.json()["error"]["param"] == param
    is_alive(chat_server)


def test_a_local_file_below_the_allowed_folder_is_read(chat_server: RunningServer, chat_folder: Path) -> None:
    path = (chat_folder / "inputs" / "in_a.wav").resolve()

    by_file = ask(chat_server, [part("audio_url", f"file://{path}"), TEXT], max_tokens=4)
    by_data = ask(chat_server, [part("input_audio", b64(path.read_bytes())), TEXT], max_tokens=4)

    assert by_file["choices"] == by_data["choices"]


def test_mixed_requests_at_once_are_each_as_alone(chat_server: RunningServer, chat_folder: Path) -> None:
    """Text, image, short and long audio in the same steps."""
    image = part("image_url", PNG + b64((chat_folder / "inputs" / "in_a.png").read_bytes()))
    contents: list[Any] = [
        "Hi",
        "Tell me a story about the sea. " * 6,
        [image, TEXT],
        [part("input_audio", b64(make_wav(1_600))), TEXT],
        [part("input_audio", b64(make_wav(80_000))), TEXT],
        [image, part("input_audio", b64(make_wav(16_000))), TEXT],
    ]
    alone = [ask(chat_server, content, max_tokens=8)["choices"] for content in contents]

    with ThreadPoolExecutor(len(contents)) as pool:
        together = list(pool.map(lambda content: ask(chat_server, content, max_tokens=8)["choices"], contents))

    assert together == alone
