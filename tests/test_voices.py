"""Uploaded voices and text that arrives in pieces, on real engines of both families, and what the page on voices shows."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from websockets.sync.client import connect

from omni_server.testing import RunningServer, assert_same_sound, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "voices.md"
GREEDY = {"sampling_params_list": [{"temperature": 0.0}, {}], "seed": 1, "max_new_tokens": 8, "response_format": "pcm"}
PIECES = ("Hello the", "re. It costs 3", ".14 euros, Dr. Li says. ", "Good", " bye!")
SENTENCES = ("Hello there. ", "It costs 3.14 euros, Dr. Li says. ", "Good bye!")


@dataclass(frozen=True)
class Family:
    """A served family of models: how its recordings come, and what its audio is."""

    server: RunningServer
    words: str | None
    rate: int
    channels: int


@pytest.fixture(scope="module")
def recording() -> bytes:
    buffer = io.BytesIO()
    times = np.arange(2 * 24000) / 24000
    soundfile.write(buffer, (0.3 * np.sin(900 * times) * np.sin(9 * times)).astype(np.float32), 24000, format="WAV")
    return buffer.getvalue()


@pytest.fixture(scope="module", params=["qwen3_tts", "moss_tts_local"])
def family(
    request: pytest.FixtureRequest, tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Family]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "qwen3_tts":
        model, words, rate, channels = tiny("base"), "What I say.", 24000, 1
    else:
        model, words, rate, channels = folder / "model", None, 48000, 2
        subprocess.run([sys.executable, "-m", "omni_core", "tiny", request.param, str(model)], check=True, timeout=240)
    with serve(model, "--voices-dir", str(folder / "voices"), log=folder / "serve.log", env={"OMP_NUM_THREADS": "1"}) as server:
        yield Family(server, words, rate, channels)


def upload(family: Family, data: bytes, name: str) -> dict[str, Any]:
    form = {"name": name, "consent": "signed"} | ({"ref_text": family.words} if family.words else {})
    answer = httpx.post(f"{family.server.url}/v1/audio/voices", data=form, files={"audio_sample": data}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def speak(family: Family, **fields: Any) -> httpx.Response:
    return httpx.post(f"{family.server.url}/v1/audio/speech", json={**GREEDY, **fields}, timeout=120)


def talk(family: Family, pieces: tuple[str, ...], **config: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Send text in pieces; return the events, and the bytes of each sentence."""
    events: list[dict[str, Any]] = []
    sounds: list[bytes] = []
    url = family.server.url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    with connect(url, open_timeout=60) as socket:
        socket.send(json.dumps({"type": "session.config", **GREEDY, **config}))
        for piece in pieces:
            socket.send(json.dumps({"type": "input.text", "text": piece}))
        socket.send(json.dumps({"type": "session.close"}))
        for message in socket:
            if isinstance(message, bytes):
                sounds[-1] += message
                continue
            events.append(json.loads(message))
            if events[-1]["type"] == "audio.start":
                sounds.append(b"")
        assert socket.protocol.close_code == 1000
    return events, sounds


def test_uploaded_voice_is_the_voice_of_its_recording(family: Family, recording: bytes) -> None:
    upload(family, recording, "Alice")
    uri = f"data:audio/wav;base64,{_base64(recording)}"
    inline = {"ref_audio": uri} | ({"ref_text": family.words} if family.words else {})

    by_name = speak(family, input="Hello there.", voice="alice")
    by_recording = speak(family, input="Hello there.", **inline)

    assert by_name.status_code == by_recording.status_code == 200, by_name.text
    assert len(by_name.content) > 0
    assert_same_sound(by_name.content, by_recording.content)
    assert (by_name.headers["x-omni-sample-rate"], by_name.headers["x-omni-channels"]) == (
        str(family.rate),
        str(family.channels),
    )


def test_each_sentence_is_sample_for_sample_its_http_answer(family: Family, recording: bytes) -> None:
    """AP-06: one request for each sentence keeps voice and order, whatever the messages were."""
    upload(family, recording, "Bob")

    events, sounds = talk(family, PIECES, voice="bob")

    begun = [event for event in events if event["type"] == "audio.start"]
    assert [event["sentence_text"] for event in begun] == list(SENTENCES)
    assert {(event["format"], event["sample_rate"], event["channels"]) for event in begun} == {
        ("pcm", family.rate, family.channels)
    }
    assert [event["error"] for event in events if event["type"] == "audio.done"] == [False] * 3
    for sentence, heard in zip(SENTENCES, sounds, strict=True):
        answer = speak(family, input=sentence.strip(), voice="bob", stream_format="audio")
        assert answer.status_code == 200, answer.text
        assert len(heard) % (2 * family.channels) == 0
        assert_same_sound(heard, answer.content)


def test_refused_upload_and_unknown_voice_leave_the_server_well(family: Family) -> None:
    form = {"name": "Carol", "consent": "signed"}
    refused = httpx.post(
        f"{family.server.url}/v1/audio/voices", data=form, files={"audio_sample": b"no sound" * 100}, timeout=60
    )
    unknown = speak(family, input="Hello.", voice="carol")

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "audio_sample")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "voice")
    assert httpx.get(f"{family.server.url}/health", timeout=10).status_code == 200


def test_examples_of_the_page_run(family: Family, recording: bytes, tmp_path: Path) -> None:
    """The page's commands and programs, against this server and its model."""
    (tmp_path / "voice.wav").write_bytes(recording)
    httpx.delete(f"{family.server.url}/v1/audio/voices/Alice", timeout=10)
    blocks = re.findall(r"^```(console|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    ran = 0

    for language, text in blocks:
        text = text.replace("127.0.0.1:8000", family.server.url.removeprefix("http://"))
        if language == "console" and "curl" in text:
            lines = [line.removeprefix("$ ") for line in text.splitlines()]
            command = ["bash", "-euc", "\n".join(lines)]
        elif language == "python":
            command = [sys.executable, "-c", text]
        else:
            continue
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        assert '"error"' not in done.stdout, done.stdout
        ran += 1

    assert ran == len(re.findall(r"^```(?:python|console)\n(?!\$ omni)", PAGE.read_text(), re.MULTILINE)) >= 4
    samples, rate = soundfile.read(tmp_path / "alice.wav")
    assert (rate, len(samples) > 0) == (family.rate, True)
    assert (tmp_path / "answer.pcm").stat().st_size > 0


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()
