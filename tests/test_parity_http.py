"""Speech over HTTP against the reference implementation: every golden case, alone and all at once, streamed and not.

One wrong code moves the waveform far beyond the tolerance (golden/README.md), so a waveform within 1e-3 of the right length
also means equal codes; the codes themselves are compared through the Python API in test_parity_codes.py.
"""

from __future__ import annotations

import base64
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from omni_server.testing import RunningServer, serve

GOLDEN = Path(os.environ.get("OMNI_GOLDEN", Path(__file__).resolve().parents[2] / "shared" / "golden"))
SMALL = Path(__file__).resolve().parents[1] / "packages" / "omni-models-qwen" / "tests" / "data"
TOLERANCE = 1e-3


def _folders() -> list[Path]:
    full = sorted(GOLDEN.glob("qwen3-tts-*"))
    return full or sorted(path.parent for path in SMALL.glob("*/golden.json"))


@pytest.fixture(scope="module", params=_folders(), ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module", params=["--async-chunk", "--no-async-chunk"])
def server(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("serve") / "stderr.log"
    with serve(folder, request.param, log=log) as running:
        yield running


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "golden.json").read_text())["cases"]
    return found


def _body(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    request = case["request"]
    names = {"text": "input", "speaker": "voice", "instruct": "instructions"}
    body = {names.get(key, key): value for key, value in request.items() if value is not None}
    if "ref_audio" in body:
        data = base64.b64encode((folder / body["ref_audio"]).read_bytes()).decode()
        body["ref_audio"] = f"data:audio/wav;base64,{data}"
    greedy = {"temperature": 0.0, "repetition_penalty": case["repetition_penalty"]}
    return {**body, "max_new_tokens": case["max_frames"], "sampling_params_list": [greedy, {}], "response_format": "wav"}


def _whole(url: str, body: dict[str, Any]) -> np.ndarray[Any, Any]:
    answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
    assert rate == 24000
    return samples


def _streamed(url: str, body: dict[str, Any]) -> np.ndarray[Any, Any]:
    body = {**body, "response_format": "pcm", "stream_format": "audio"}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=120) as answer:
        data = b"".join(answer.iter_bytes())
        assert answer.status_code == 200, data
    return np.frombuffer(data, "<i2").astype(np.float32) / 32768


def _expected(folder: Path, case: dict[str, Any]) -> np.ndarray[Any, Any]:
    with np.load(folder / "golden.npz") as arrays:
        wav: np.ndarray[Any, Any] = arrays[case["wav"]["npz"]]
    return wav


def _check(folder: Path, case: dict[str, Any], samples: np.ndarray[Any, Any]) -> None:
    expected = _expected(folder, case)
    assert samples.shape == expected.shape, case["id"]
    assert np.abs(samples - expected).max() < TOLERANCE, case["id"]


@pytest.mark.engine
@pytest.mark.slow
def test_each_case_alone_equals_the_reference(server: RunningServer, folder: Path, cases: list[dict[str, Any]]) -> None:
    for case in cases:
        _check(folder, case, _whole(server.url, _body(folder, case)))


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("fetch", [_whole, _streamed])
def test_all_cases_at_once_equal_the_reference(
    server: RunningServer, folder: Path, cases: list[dict[str, Any]], fetch: Any
) -> None:
    with ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(lambda case: fetch(server.url, _body(folder, case)), cases))

    for case, samples in zip(cases, answers, strict=True):
        _check(folder, case, samples)
