"""What users of other servers reported of conversations, tried on ours: named after the reports (spec/user-reports.md)."""

from __future__ import annotations

import base64
import io
import json
import time
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from omni_server.testing import RunningServer

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

BOTH = ["text", "audio"]
SOON_S = 20.0
GREEDY = [{"temperature": 0.0}, {"temperature": 0.0, "top_k": -1}, {}]


def _post(server: RunningServer, content: Any = "Good morning.", headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)


def _answer(server: RunningServer, content: Any = "Good morning.", **fields: Any) -> dict[str, Any]:
    response = _post(server, content, **fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def _spoken(server: RunningServer, content: Any = "Good morning.", **fields: Any) -> np.ndarray[Any, Any]:
    audio = {"format": "pcm16", **fields.pop("audio", {})}
    answer = _answer(server, content, modalities=BOTH, audio=audio, **fields)
    return np.frombuffer(base64.b64decode(answer["choices"][0]["message"]["audio"]["data"]), "<i2")


def _chunks(server: RunningServer, content: Any = "Good morning.", **fields: Any) -> list[dict[str, Any]]:
    response = _post(server, content, stream=True, **fields)
    assert response.status_code == 200, response.text
    parts = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def _refused(response: Any, param: str | None) -> None:
    assert response.status_code in (400, 404, 422), response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error


def _is_alive(server: RunningServer) -> None:
    assert len(_spoken(server, max_tokens=4)) > 0
    assert httpx.get(f"{server.url}/health", timeout=SOON_S).status_code == 200


# B13


def test_b13_with_and_without_chunks_the_answers_are_alike(
    chat_server: RunningServer, serve_chat: Callable[..., AbstractContextManager[RunningServer]]
) -> None:
    """Alone and eight at once, whole and streamed: the same text, the same number of samples. Ends never reach the codec."""
    texts = [f"Question number {number}, please." for number in range(8)]
    fields: dict[str, Any] = {"sampling_params_list": GREEDY, "max_tokens": 8, "modalities": BOTH}

    def answers(server: RunningServer) -> list[tuple[str, int]]:
        def one(text: str) -> tuple[str, int]:
            audio = _answer(server, text, audio={"format": "pcm16"}, **fields)["choices"][0]["message"]["audio"]
            return audio["transcript"], len(base64.b64decode(audio["data"]))

        def streamed(text: str) -> tuple[str, int]:
            parts = [chunk["choices"][0]["delta"].get("audio", {}) for chunk in _chunks(server, text, **fields)]
            said = "".join(part.get("transcript", "") for part in parts)
            return said, sum(len(base64.b64decode(part.get("data", ""))) for part in parts)

        with ThreadPoolExecutor(8) as pool:
            return [one(texts[0]), *pool.map(one, texts), *pool.map(streamed, texts)]

    with serve_chat("--no-async-chunk") as without:
        whole = answers(without)

    assert answers(chat_server) == whole
    assert all(size > 0 for _, size in whole)


# B18: of conversations, a client that drops its connection


def test_b18_dropped_streams_leave_nothing_behind(chat_server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "modalities": BOTH, "stream": True, "max_tokens": 200}
    body["sampling_params_list"] = [{"ignore_eos": True, "min_tokens": 200}, {"max_tokens": 400}, {}]
    for _ in range(6):
        with httpx.stream("POST", f"{chat_server.url}/v1/chat/completions", json=body, timeout=60) as answer:
            next(answer.iter_bytes())

    deadline = time.monotonic() + SOON_S
    running = ""
    while time.monotonic() < deadline and running != "0.0":
        lines = httpx.get(f"{chat_server.url}/metrics", timeout=SOON_S).text.splitlines()
        running = next(line.split()[-1] for line in lines if line.startswith("omni_requests_running "))
    assert running == "0.0"
    _is_alive(chat_server)


# B19


def test_b19_two_conversations_with_one_id_get_their_own_answers(chat_server: RunningServer) -> None:
    texts = ("The first of two.", "And this is the second one, which is longer.")
    fields: dict[str, Any] = {"sampling_params_list": GREEDY, "max_tokens": 10}
    alone = [_answer(chat_server, text, **fields)["choices"] for text in texts]

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda text: _post(chat_server, text, {"X-Request-Id": "same"}, **fields), texts))

    assert [answer.json()["choices"] for answer in together] == alone
    assert [answer.headers["x-request-id"] for answer in together] == ["same", "same"]
    assert together[0].json()["id"] != together[1].json()["id"]


# B20, B21


def test_b20_a_stream_joined_is_the_whole_answer(chat_server: RunningServer) -> None:
    """The default sampling of the stages is cut at 60 frames, which end behind the borders of payloads."""
    fields: dict[str, Any] = {"sampling_params_list": GREEDY, "max_tokens": 12}
    whole = _spoken(chat_server, **fields)

    chunks = _chunks(chat_server, modalities=BOTH, audio={"format": "pcm16"}, **fields)

    parts = [chunk["choices"][0]["delta"].get("audio", {}) for chunk in chunks if chunk["choices"]]
    data = b"".join(base64.b64decode(part["data"]) for part in parts if "data" in part)
    streamed = np.frombuffer(data, "<i2")
    assert b"RIFF" not in data  # B21: a header would be a click in every piece
    assert len(streamed) == len(whole) > 0
    assert np.abs(streamed.astype(int) - whole).max() <= 2


def test_b21_a_whole_wav_has_exact_sizes_and_a_streamed_one_is_refused(chat_server: RunningServer) -> None:
    answer = _answer(chat_server, modalities=BOTH, audio={"format": "wav"}, max_tokens=6)

    data = base64.b64decode(answer["choices"][0]["message"]["audio"]["data"])
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert 2 * file.getnframes() == len(data) - 44
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    _refused(_post(chat_server, modalities=BOTH, audio={"format": "wav"}, stream=True), "audio.format")


# B22


def test_b22_label_and_length_agree_with_the_frames_that_were_made(chat_server: RunningServer) -> None:
    """The codec makes 1920 samples of a frame and lacks 555 at the end (golden/README.md), at 24 kHz in every format."""
    sampling = [{"temperature": 0.0}, {"temperature": 0.0, "top_k": -1, "min_tokens": 20, "max_tokens": 20}, {}]
    fields: dict[str, Any] = {"modalities": BOTH, "max_tokens": 6, "sampling_params_list": sampling}
    samples = 20 * 1920 - 555

    for form in ("wav", "flac"):
        audio = _answer(chat_server, audio={"format": form}, **fields)["choices"][0]["message"]["audio"]
        found, rate = soundfile.read(io.BytesIO(base64.b64decode(audio["data"])), always_2d=True)
        assert (rate, found.shape) == (24_000, (samples, 1)), form
    assert _spoken(chat_server, max_tokens=6, sampling_params_list=sampling).shape == (samples,)
    chunks = _chunks(chat_server, audio={"format": "pcm16"}, **{key: fields[key] for key in fields if key != "audio"})
    parts = [chunk["choices"][0]["delta"].get("audio", {}) for chunk in chunks if chunk["choices"]]
    assert sum(len(base64.b64decode(part.get("data", ""))) for part in parts) == 2 * samples


@pytest.mark.parametrize("rate", [44100, 8000, 0, -1, "8000"])
def test_b22_a_rate_that_is_asked_for_is_refused(chat_server: RunningServer, rate: Any) -> None:
    """OpenAI's chat has no such field: it is refused by its name, and never ignored."""
    _refused(_post(chat_server, modalities=BOTH, sample_rate=rate), "sample_rate")
    inside = _post(chat_server, modalities=BOTH, audio={"format": "wav", "sample_rate": rate})
    _refused(inside, "audio")
    assert "unknown field `sample_rate`" in inside.json()["error"]["message"]
    _is_alive(chat_server)


def test_b22_speed_is_refused_whole_and_streamed(chat_server: RunningServer) -> None:
    for stream in (False, True):
        _refused(_post(chat_server, modalities=BOTH, stream=stream, speed=2), "speed")


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (24_000, 1), (44_100, 2), (48_000, 2)])
def test_b22_a_second_is_heard_as_a_second_at_any_rate(chat_server: RunningServer, rate: int, channels: int) -> None:
    def tokens(rate: int, channels: int) -> int:
        file, tone = io.BytesIO(), 0.3 * np.sin(np.arange(rate) * 2 * np.pi * 300 / rate)
        soundfile.write(file, np.repeat(tone[:, None], channels, 1), rate, format="WAV", subtype="PCM_16")
        sound = {"data": base64.b64encode(file.getvalue()).decode(), "format": "wav"}
        answer = _answer(chat_server, [{"type": "input_audio", "input_audio": sound}], max_tokens=1)
        found: int = answer["usage"]["prompt_tokens_details"]["audio_tokens"]
        return found

    assert tokens(rate, channels) == tokens(16_000, 1) > 10


# B23


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": []}, "modalities"),
        ({"modalities": ["video"]}, "modalities"),
        ({"modalities": "audio"}, "modalities"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": -1}, "temperature"),
        ({"sampling_params_list": [{}]}, "sampling_params_list"),
        ({"sampling_params_list": [{"temperature": -1}, {}, {}]}, "temperature"),
        ({"sampling_params_list": [{}, {}, {"no_such": 1}]}, "no_such"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
    ],
    ids=str,
)
def test_b23_a_bad_conversation_is_answered_and_ends_nothing(
    chat_server: RunningServer, fields: dict[str, Any], param: str
) -> None:
    _refused(_post(chat_server, **fields), param)
    _is_alive(chat_server)


def test_b23_speech_of_a_given_text_is_a_clean_refusal(chat_server: RunningServer) -> None:
    """vllm-omni#2747."""
    response = httpx.post(f"{chat_server.url}/v1/audio/speech", json={"input": "Good morning."}, timeout=60)

    _refused(response, "model")
    _is_alive(chat_server)


# B24


@pytest.mark.parametrize("voice", ["nobody", " ethan ", "", 7, ["ethan"]])
def test_b24_an_unknown_voice_is_refused_with_the_list(chat_server: RunningServer, voice: Any) -> None:
    response = _post(chat_server, modalities=BOTH, audio={"voice": voice})

    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("audio.voice", "audio")
    if isinstance(voice, str) and voice:
        assert "aiden" in response.json()["error"]["message"]


def test_b24_case_does_not_matter_and_voices_differ(chat_server: RunningServer) -> None:
    fields: dict[str, Any] = {"sampling_params_list": GREEDY, "max_tokens": 6}
    lower, upper, other, default = (
        _spoken(chat_server, audio=audio, **fields)
        for audio in ({"voice": "ethan"}, {"voice": "ETHAN"}, {"voice": "chelsie"}, {})
    )

    assert lower.shape == upper.shape == default.shape
    assert np.abs(lower.astype(int) - upper).max() <= 2
    assert np.abs(lower.astype(int) - default).max() <= 2
    assert other.shape != lower.shape or np.abs(other.astype(int) - lower).max() > 100


@pytest.mark.parametrize("text", ["😀", "?!…", "\u200f\u200e", " \t\n", "שלום \u202eעולם", "half \\ud800"], ids=ascii)
def test_b24_odd_texts_are_answered(chat_server: RunningServer, text: str) -> None:
    assert _post(chat_server, text, max_tokens=2).status_code == 200


def test_b24_what_is_no_text_is_refused(chat_server: RunningServer) -> None:
    for text in ("a \0 in it", "half \ud800 a pair"):
        content = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        response = httpx.post(
            f"{chat_server.url}/v1/chat/completions",
            content=content,
            headers={"Content-Type": "application/json"},
            timeout=60,
        )
        _refused(response, "messages.0.content")


# E01


def test_e01_audio_is_heard_alike_however_it_is_written(chat_server: RunningServer, chat_folder: Path) -> None:
    data = (chat_folder / "inputs" / "in_a.wav").read_bytes()
    plain = base64.b64encode(data).decode()
    forms = [
        plain,
        f"data:;base64,{plain}",
        f"data:audio/wav;base64,{plain}",
        base64.urlsafe_b64encode(data).decode(),
        base64.encodebytes(data).decode(),
    ]
    parts: list[Any] = [{"type": "input_audio", "input_audio": {"data": form, "format": "wav"}} for form in forms]
    parts.append({"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{plain}"}})

    answers = [_answer(chat_server, [part, {"type": "text", "text": "What?"}], temperature=0, max_tokens=6) for part in parts]

    assert len({json.dumps(answer["choices"]) for answer in answers}) == 1
    assert len({answer["usage"]["prompt_tokens_details"]["audio_tokens"] for answer in answers}) == 1


# E02, E03


@pytest.mark.parametrize("frames", [1, 7, 30])
def test_e02_a_talker_that_never_ends_stops_at_its_limit_and_says_so(chat_server: RunningServer, frames: int) -> None:
    sampling = [{"temperature": 0.0}, {"temperature": 0.0, "top_k": -1, "min_tokens": frames, "max_tokens": frames}, {}]

    answer = _answer(chat_server, modalities=BOTH, audio={"format": "pcm16"}, max_tokens=3, sampling_params_list=sampling)

    assert answer["usage"]["completion_tokens_details"]["audio_tokens"] == frames
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("most", [1, 5])
def test_e03_max_tokens_is_a_limit_of_the_text(chat_server: RunningServer, most: int) -> None:
    for modalities in (["text"], BOTH):
        usage = _answer(chat_server, modalities=modalities, max_tokens=most, ignore_eos=True)["usage"]

        assert usage["completion_tokens_details"]["text_tokens"] == most


def test_e03_a_seed_repeats_text_and_audio_and_another_one_does_not(chat_server: RunningServer) -> None:
    fields: dict[str, Any] = {"modalities": BOTH, "audio": {"format": "pcm16"}, "temperature": 1.0, "max_tokens": 8}
    first, again, other = (_answer(chat_server, seed=seed, **fields)["choices"][0]["message"]["audio"] for seed in (1, 1, 2))

    samples = [np.frombuffer(base64.b64decode(audio["data"]), "<i2") for audio in (first, again, other)]
    assert first["transcript"] == again["transcript"] != other["transcript"]
    assert samples[0].shape == samples[1].shape
    assert np.abs(samples[0].astype(int) - samples[1]).max() <= 2
    assert samples[2].shape != samples[0].shape or np.abs(samples[2].astype(int) - samples[0]).max() > 100


def test_e03_a_seed_of_the_talker_alone_changes_the_audio_alone(chat_server: RunningServer) -> None:
    answers = [
        _answer(
            chat_server,
            modalities=BOTH,
            audio={"format": "pcm16"},
            max_tokens=6,
            sampling_params_list=[{"temperature": 0.0}, {"temperature": 1.0, "top_k": -1, "seed": seed}, {}],
        )["choices"][0]["message"]["audio"]
        for seed in (1, 2)
    ]

    assert answers[0]["transcript"] == answers[1]["transcript"]
    assert answers[0]["data"] != answers[1]["data"]


# E04


def test_e04_a_reply_of_one_token_is_a_clean_end(chat_server: RunningServer) -> None:
    fields: dict[str, Any] = {"modalities": BOTH, "max_tokens": 1, "temperature": 0}
    answer = _answer(chat_server, audio={"format": "wav"}, **fields)

    chunks = _chunks(chat_server, stream_options={"include_usage": True}, **fields)

    assert base64.b64decode(answer["choices"][0]["message"]["audio"]["data"]).startswith(b"RIFF")
    assert answer["choices"][0]["finish_reason"] == "length"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "length"
    assert chunks[-1]["usage"]["completion_tokens_details"]["text_tokens"] == 1


def test_e04_text_and_audio_come_piece_by_piece(chat_server: RunningServer) -> None:
    """By the order of events: several pieces of each, and the reason last. With words still coming there is sound already."""
    sampling = [{"temperature": 0.0, "ignore_eos": True}, {"temperature": 0.0, "top_k": -1, "min_tokens": 50}, {}]

    # So many words that the first sound comes among them, however busy the machine is.
    chunks = _chunks(chat_server, modalities=BOTH, max_tokens=900, sampling_params_list=sampling)

    kinds = [next(iter(c["choices"][0]["delta"].get("audio", {})), None) for c in chunks if c["choices"]]
    assert kinds.count("transcript") >= 3
    assert kinds.count("data") >= 2
    assert kinds.index("data") < len(kinds) - 1 - kinds[::-1].index("transcript")
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] == "length"
