"""Golden cases of MOSS-TTS Local: requests and what the reference implementation made of them."""

from __future__ import annotations

import json
import os
import wave
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.model_info import ModelInfo
from omni_core.speech import ReferenceAudio, SpeechPrompt
from omni_core.stage import ResolvedStage
from omni_models_moss.pipeline import MOSS_TTS_LOCAL

DATA = Path(__file__).parents[1] / "data" / "moss-tts-local"
FRAMES_PER_SECOND = 12.5


@cache
def _load(folder: Path) -> tuple[dict[str, Any], Any]:
    return json.loads((folder / "golden.json").read_text(encoding="utf-8")), np.load(folder / "golden.npz")


@dataclass(frozen=True)
class GoldenCase:
    """One request of a golden folder."""

    folder: Path
    id: str

    @property
    def record(self) -> dict[str, Any]:
        return next(case for case in _load(self.folder)[0]["cases"] if case["id"] == self.id)

    @property
    def continues(self) -> bool:
        return self.record["request"].get("mode") == "continuation"

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        arrays = _load(self.folder)[1]
        key = f"{self.id}__{name}"
        return arrays[key] if key in arrays.files else None

    @property
    def prompt(self) -> SpeechPrompt:
        """The request as a client of the speech API sends it."""
        request = self.record["request"]
        text, words = request["text"], None
        if self.continues:  # the reference wants both texts as one; here the words of the recording are a field of their own
            begin = text.index("And now")
            words, text = text[:begin].strip(), text[begin:]
        return SpeechPrompt(
            text=text,
            language=request.get("language"),
            instructions=request.get("instruction"),
            quality=request.get("quality"),
            ambient_sound=request.get("ambient_sound"),
            sound_event=request.get("sound_event"),
            duration_seconds=request["tokens"] / FRAMES_PER_SECOND if "tokens" in request else None,
            ref_audio=_read_wav(self.folder / request["audio"]) if "audio" in request else None,
            ref_text=words,
        )


def _read_wav(path: Path) -> ReferenceAudio:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").reshape(-1, file.getnchannels())
        return ReferenceAudio((samples / 32768).astype(np.float32), file.getframerate())


def _folders() -> list[tuple[Path, bool]]:
    """Return the golden folders, and for each whether it is outside this package."""
    for place in (os.environ.get("OMNI_GOLDEN"), "/work/shared/golden", DATA.parents[4].parent / "shared" / "golden"):
        if place and (folder := Path(place, "moss-tts-local")).is_dir():
            return [(DATA, False), (folder, True)]
    return [(DATA, False)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the argument `case` for every golden case, and one with `golden_folder` for every folder."""
    if "golden_folder" in metafunc.fixturenames:
        params = [
            pytest.param(folder, id="shared" if shared else "small", marks=[pytest.mark.golden] * shared)
            for folder, shared in _folders()
        ]
        metafunc.parametrize("golden_folder", params, scope="module")
    if "case" in metafunc.fixturenames:
        params = [
            pytest.param(
                GoldenCase(folder, record["id"]),
                id=f"{'shared-' if shared else ''}{record['id']}",
                marks=[pytest.mark.golden] * shared,
            )
            for folder, shared in _folders()
            for record in _load(folder)[0]["cases"]
        ]
        metafunc.parametrize("case", params)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The checkpoint that comes with these tests."""
    return DATA


@pytest.fixture(scope="session")
def cases_of() -> Callable[[Path], list[GoldenCase]]:
    """Return the golden cases of a folder."""
    return lambda folder: [GoldenCase(folder, record["id"]) for record in _load(folder)[0]["cases"]]


@pytest.fixture(scope="session")
def model_info() -> Callable[[Path], ModelInfo]:
    """Return the facts of a checkpoint folder."""
    return lambda folder: ModelInfo(str(folder), folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def talker_stage() -> Callable[..., ResolvedStage]:
    """Return the resolved talker of the pipeline over a checkpoint folder."""

    def make(folder: Path, **values: Any) -> ResolvedStage:
        defaults: dict[str, Any] = {
            "pipeline": MOSS_TTS_LOCAL.model_type,
            "topology": MOSS_TTS_LOCAL.stages[0],
            "model": str(folder),
            "architecture": MOSS_TTS_LOCAL.architecture(0),
            "architecture_target": "omni_models_moss.local.talker:MossTTSLocalTalker",
            "runner": "omni_core.engine.ar.runner:ArRunner",
        }
        return ResolvedStage(**{**defaults, **values})

    return make
