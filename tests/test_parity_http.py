"""Speech over HTTP against the reference implementation: every golden case, alone and all at once, streamed and not.

One wrong code moves the waveform far beyond the tolerance (golden/README.md), so a waveform within 1e-3 of the right length
also means equal codes; the codes themselves are compared through the Python API in test_parity_codes.py.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from omni_server.testing import RunningServer, serve

GOLDEN = Path(os.environ.get("OMNI_GOLDEN", Path(__file__).resolve().parents[2] / "shared" / "golden"))
PACKAGES = Path(__file__).resolve().parents[1] / "packages"
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Family:
    """Golden folders of one kind: where they are, what they sound like, and how their requests are said over HTTP."""

    pattern: str
    package: str
    """Has small folders of the kind in `tests/data`."""
    rate: int
    fields: Mapping[str, str]
    """Names in a golden request to fields of the API."""
    begins_anew: str = ""
    """First words of what is new in a continuation: a golden request has them behind those of the recording, in one text."""

    def folders(self) -> list[Path]:
        small = sorted((PACKAGES / self.package / "tests" / "data").glob(self.pattern))
        return sorted(GOLDEN.glob(self.pattern)) or small

    def body(self, folder: Path, case: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a case's request, greedy and as a wav file."""
        request = {name: value for name, value in case["request"].items() if value is not None}
        if request.pop("mode", None) == "continuation":
            begin = request["text"].index(self.begins_anew)
            request["ref_text"], request["text"] = request["text"][:begin].strip(), request["text"][begin:]
        if "tokens" in request:
            request["duration_seconds"] = request.pop("tokens") / FRAMES_PER_SECOND
        body = {self.fields.get(name, name): value for name, value in request.items()}
        if "ref_audio" in body:
            data = base64.b64encode((folder / body["ref_audio"]).read_bytes()).decode()
            body["ref_audio"] = f"data:audio/wav;base64,{data}"
        greedy = {"temperature": 0.0, "repetition_penalty": case["repetition_penalty"]}
        return {**body, "max_new_tokens": case["max_frames"], "sampling_params_list": [greedy, {}], "response_format": "wav"}


FRAMES_PER_SECOND = 12.5
FAMILIES = (
    Family("qwen3-tts-*", "omni-models-qwen", 24000, {"text": "input", "speaker": "voice", "instruct": "instructions"}),
    Family(
        "moss-tts-local",
        "omni-models-moss",
        48000,
        {"text": "input", "instruction": "instructions", "audio": "ref_audio"},
        begins_anew="And now",
    ),
)
FOLDERS = [pytest.param((family, folder), id=folder.name) for family in FAMILIES for folder in family.folders()]


@pytest.fixture(scope="module", params=FOLDERS)
def kind(request: pytest.FixtureRequest) -> tuple[Family, Path]:
    return request.param


@pytest.fixture(scope="module")
def family(kind: tuple[Family, Path]) -> Family:
    return kind[0]


@pytest.fixture(scope="module")
def folder(kind: tuple[Family, Path]) -> Path:
    return kind[1]


@pytest.fixture(scope="module", params=["--async-chunk", "--no-async-chunk"])
def server(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("serve") / "stderr.log"
    with serve(folder, request.param, log=log) as running:
        yield running


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "golden.json").read_text())["cases"]
    return found


def _whole(url: str, body: dict[str, Any], family: Family) -> np.ndarray[Any, Any]:
    answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
    assert rate == family.rate
    return samples


def _streamed(url: str, body: dict[str, Any], family: Family) -> np.ndarray[Any, Any]:
    body = {**body, "response_format": "pcm", "stream_format": "audio"}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=120) as answer:
        data = b"".join(answer.iter_bytes())
        assert answer.status_code == 200, data
        assert answer.headers["X-Omni-Sample-Rate"] == str(family.rate)
        channels = int(answer.headers["X-Omni-Channels"])
    samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    return samples if channels == 1 else samples.reshape(-1, channels)


def _expected(folder: Path, case: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the reference's samples, [n] or [n, channels]."""
    with np.load(folder / "golden.npz") as arrays:
        wav: np.ndarray[Any, Any] = arrays[case["wav"]["npz"]].T
    return wav


def _check(folder: Path, case: dict[str, Any], samples: np.ndarray[Any, Any]) -> None:
    expected = _expected(folder, case)
    assert samples.shape == expected.shape, case["id"]
    assert np.abs(samples - expected).max() < TOLERANCE, case["id"]


@pytest.mark.engine
@pytest.mark.slow
def test_each_case_alone_equals_the_reference(
    server: RunningServer, family: Family, folder: Path, cases: list[dict[str, Any]]
) -> None:
    for case in cases:
        _check(folder, case, _whole(server.url, family.body(folder, case), family))


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("fetch", [_whole, _streamed])
def test_all_cases_at_once_equal_the_reference(
    server: RunningServer, family: Family, folder: Path, cases: list[dict[str, Any]], fetch: Any
) -> None:
    with ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(lambda case: fetch(server.url, family.body(folder, case), family), cases))

    for case, samples in zip(cases, answers, strict=True):
        _check(folder, case, samples)
