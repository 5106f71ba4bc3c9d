"""Requests and checkpoints that cannot work: a clear error at once, and a server that goes on."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ANSWER_S = 10.0
START_S = 120.0


def _audio(seconds: float) -> str:
    buffer = io.BytesIO()
    samples = 0.3 * np.sin(np.arange(int(24000 * seconds)) * 0.05)
    soundfile.write(buffer, samples.astype(np.float32), 24000, format="WAV")
    return "data:audio/wav;base64," + base64.b64encode(buffer.getvalue()).decode()


@pytest.fixture(scope="module")
def custom_voice(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve(tiny("custom_voice"), log=tmp_path_factory.mktemp("custom_voice") / "serve.log") as server:
        yield server


@pytest.fixture(scope="module")
def base(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve(tiny("base"), log=tmp_path_factory.mktemp("base") / "serve.log") as server:
        yield server


def _refused(server: RunningServer, param: str | None, mentions: str = "", **request: Any) -> None:
    """Send a request; expect an OpenAI error object that names a field, and a server that is still healthy."""
    answer = httpx.post(f"{server.url}/v1/audio/speech", timeout=ANSWER_S, **request)

    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in {"invalid_request_error", "not_found_error"}
    assert error["param"] == param, error
    assert mentions in error["message"]
    assert "traceback" not in error["message"].lower()
    assert httpx.get(f"{server.url}/health", timeout=ANSWER_S).status_code == 200


@pytest.mark.parametrize(
    ("change", "param", "mentions"),
    [
        pytest.param({"input": ""}, "input", "", id="empty text"),
        pytest.param({"input": "   \n"}, "input", "", id="blank text"),
        pytest.param({"input": None}, "input", "", id="no text"),
        pytest.param({"input": 7}, "input", "", id="text that is a number"),
        pytest.param({"input": "word " * 20_000}, "input", "100000", id="100 kB of text"),
        pytest.param({"voice": "nobody_of_that_name"}, "voice", "nobody_of_that_name", id="unknown voice"),
        pytest.param({"language": "Klingon"}, "language", "Klingon", id="unknown language"),
        pytest.param({"task_type": "Base"}, "task_type", "CustomVoice", id="wrong variant"),
        pytest.param({"task_type": "Opera"}, "task_type", "Opera", id="unknown task"),
        pytest.param({"ref_audio": _audio(1.0), "ref_text": "Hello."}, "ref_audio", "", id="reference for a speaker model"),
        pytest.param({"max_new_tokens": 0}, "max_new_tokens", "", id="no tokens"),
        pytest.param({"max_new_tokens": 10**9}, "max_new_tokens", "4096", id="too many tokens"),
        pytest.param({"max_new_tokens": "many"}, "max_new_tokens", "", id="tokens in words"),
        pytest.param({"response_format": "vinyl"}, "response_format", "wav", id="unknown response format"),
        pytest.param({"speed": 100}, "speed", "", id="too fast"),
        pytest.param({"stream_format": "audio", "response_format": "flac"}, "response_format", "flac", id="no stream of it"),
        pytest.param({"model": "another-model"}, "model", "another-model", id="unknown model"),
        pytest.param({"voicex": "ryan"}, "voicex", "voice", id="misspelt field"),
    ],
)
def test_a_bad_request_is_refused(custom_voice: RunningServer, change: dict[str, Any], param: str, mentions: str) -> None:
    body = {"input": "Hello.", "max_new_tokens": 8, **change}

    _refused(custom_voice, param, mentions, json={key: value for key, value in body.items() if value is not None})


@pytest.mark.parametrize("content", [b"{", b"[]", b'"hello"', b"", b"\xff\xfe", b'{"input": NaN}'], ids=repr)
def test_a_body_that_is_no_json_object_is_refused(custom_voice: RunningServer, content: bytes) -> None:
    _refused(custom_voice, None, content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    ("reference", "param", "mentions"),
    [
        pytest.param({}, "ref_audio", "", id="none"),
        pytest.param({"ref_audio": "data:audio/wav;base64,bm9uc2Vuc2U="}, "ref_audio", "", id="no audio at all"),
        pytest.param({"ref_audio": "data:audio/wav;base64,@@@"}, "ref_audio", "", id="no base64"),
        pytest.param({"ref_audio": _audio(1.0)[:60]}, "ref_audio", "", id="cut off"),
        pytest.param({"ref_audio": _audio(31.0)}, "ref_audio", "30", id="31 seconds"),
        pytest.param({"ref_audio": "file:///etc/passwd"}, "ref_audio", "--allowed-local-media-path", id="a local file"),
        pytest.param({"ref_audio": "http://127.0.0.1:9/a.wav"}, "ref_audio", "127.0.0.1", id="an address that is not allowed"),
        pytest.param({"ref_audio": _audio(1.0), "ref_text": None}, "ref_text", "", id="without its words"),
    ],
)
def test_bad_reference_audio_is_refused(base: RunningServer, reference: dict[str, Any], param: str, mentions: str) -> None:
    body = {"input": "Hello.", "max_new_tokens": 8, "ref_text": "Hello.", **reference}
    if not reference:
        del body["ref_text"]

    _refused(base, param, mentions, json={key: value for key, value in body.items() if value is not None})


def test_after_all_that_a_good_request_is_answered(custom_voice: RunningServer, base: RunningServer) -> None:
    good = {"input": "Hello.", "max_new_tokens": 8, "response_format": "wav"}
    clone = {**good, "ref_audio": _audio(1.0), "ref_text": "Hello."}

    for server, body in ((custom_voice, good), (base, clone)):
        answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        samples, rate = soundfile.read(io.BytesIO(answer.content))
        assert rate == 24000
        assert len(samples) > 0


def _without_codec(folder: Path) -> None:
    shutil.rmtree(folder / "speech_tokenizer")


def _truncate(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        os.truncate(path, path.stat().st_size // 2)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "stage"),
    [
        pytest.param(_truncate("model.safetensors"), "stage 0", id="truncated talker"),
        pytest.param(_truncate("speech_tokenizer/model.safetensors"), "stage 1 (code2wav)", id="truncated codec"),
        pytest.param(_without_codec, "stage 1 (code2wav)", id="no codec"),
    ],
)
def test_a_broken_checkpoint_ends_the_start_with_the_name_of_the_stage(
    tiny: Callable[[str], Path], traces: Any, tmp_path: Path, spoil: Callable[[Path], None], stage: str
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny("custom_voice"), folder)
    spoil(folder)

    command = [sys.executable, "-m", "omni_core", "serve", str(folder), "--host", "127.0.0.1", "--port", "0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_S, env={**os.environ, **traces.env}, check=False
    )

    error = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1, done.stderr
    assert len(error) == 1, done.stderr
    assert stage in done.stderr[done.stderr.index(error[0]) :]
    assert "Listening on" not in done.stdout
    traces.wait_until_gone()


def test_a_folder_that_is_no_checkpoint_is_refused_before_anything_starts(traces: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "omni_core", "serve", str(tmp_path), "--port", "0"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **traces.env}, check=False)

    assert done.returncode == 2, done.stderr
    assert "error: " in done.stderr
    assert "config.json" in done.stderr
    traces.wait_until_gone()
