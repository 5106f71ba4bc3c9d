"""Golden cases: requests and what the reference implementation made of them."""

from __future__ import annotations

import json
import os
import wave
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_connectors.plugin
import omni_models_qwen.plugin
from omni_core.deploy.resolve import resolve_deployment
from omni_core.model_info import ModelInfo
from omni_core.pipeline import StagePipelineConfig
from omni_core.platforms import CPU, CUDA, Platform
from omni_core.plugins import PluginManager
from omni_core.speech import ReferenceAudio, SpeechPrompt
from omni_core.stage import ResolvedPipeline, ResolvedStage
from omni_core.testing.plugins import make_manager
from omni_models_qwen.qwen3_tts.pipeline import QWEN3_TTS

HERE = Path(__file__).parent
VARIANTS = ("custom_voice", "base", "voice_design")


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
    def request(self) -> dict[str, Any]:
        return self.record["request"]

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        arrays = _load(self.folder)[1]
        key = f"{self.id}__{name}"
        return arrays[key] if key in arrays.files else None

    @property
    def prompt(self) -> SpeechPrompt:
        """The request as a client of the speech API sends it."""
        request = self.request
        instructions = request.get("instruct")
        return SpeechPrompt(
            text=request["text"],
            voice=request.get("speaker"),
            language=request["language"],
            instructions=instructions,
            ref_audio=_read_wav(self.folder / request["ref_audio"]) if "ref_audio" in request else None,
            ref_text=request.get("ref_text"),
            x_vector_only_mode=request.get("x_vector_only_mode"),
            non_streaming_mode=request.get("non_streaming_mode"),
        )


def _read_wav(path: Path) -> ReferenceAudio:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return ReferenceAudio((samples / 32768).astype(np.float32), file.getframerate())


def _golden_roots() -> Iterator[Path]:
    for place in (os.environ.get("OMNI_GOLDEN"), "/work/shared/golden", HERE.parents[2].parent / "shared" / "golden"):
        if place and Path(place).is_dir():
            yield Path(place)


def _folders() -> list[tuple[Path, bool]]:
    """Return the golden folders, and for each whether it is outside this package."""
    root = next(_golden_roots(), None)
    shared = [root / f"qwen3-tts-{variant}" for variant in VARIANTS] if root else []
    return [(HERE / "data" / "qwen3-tts-custom_voice", False), *((folder, True) for folder in shared if folder.is_dir())]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the argument `case` for every golden case, and one with `golden_folder` for every folder."""
    if "golden_folder" in metafunc.fixturenames:
        params = [
            pytest.param(folder, id=("shared-" if shared else "") + folder.name, marks=[pytest.mark.golden] * shared)
            for folder, shared in _folders()
        ]
        metafunc.parametrize("golden_folder", params, scope="module")
    if "case" in metafunc.fixturenames:
        params = [
            pytest.param(
                GoldenCase(folder, record["id"]),
                id=f"{'shared-' if shared else ''}{folder.name}-{record['id']}",
                marks=[pytest.mark.golden] * shared,
            )
            for folder, shared in _folders()
            for record in _load(folder)[0]["cases"]
        ]
        metafunc.parametrize("case", params)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The checkpoint that comes with these tests: a CustomVoice one."""
    return HERE / "data" / "qwen3-tts-custom_voice"


@pytest.fixture(scope="session")
def cases_of() -> Callable[[Path], list[GoldenCase]]:
    """Return the golden cases of a folder."""
    return lambda folder: [GoldenCase(folder, record["id"]) for record in _load(folder)[0]["cases"]]


@pytest.fixture(scope="session")
def model_info() -> Callable[[Path], ModelInfo]:
    """Return the facts of a checkpoint folder."""
    return lambda folder: ModelInfo(str(folder), folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def stage_of() -> Callable[..., ResolvedStage]:
    """Return a resolved stage of the pipeline over a checkpoint folder."""

    def make(folder: Path, stage_id: int = 0, **values: Any) -> ResolvedStage:
        topology: StagePipelineConfig = QWEN3_TTS.stages[stage_id]
        defaults: dict[str, Any] = {
            "pipeline": QWEN3_TTS.model_type,
            "topology": topology,
            "model": str(folder),
            "architecture": QWEN3_TTS.architecture(stage_id),
            "architecture_target": "omni_models_qwen.qwen3_tts.talker:Qwen3TTSTalker",
            "runner": "omni_core.engine.ar.runner:ArRunner",
        }
        return ResolvedStage(**{**defaults, **values})

    return make


@pytest.fixture(scope="session")
def plugins() -> PluginManager:
    """Core, the connectors and this package, whatever else is installed."""
    return make_manager({"omni-connectors": omni_connectors.plugin, "omni-models-qwen": omni_models_qwen.plugin})


@pytest.fixture
def resolve(tmp_path: Path, plugins: PluginManager) -> Callable[..., ResolvedPipeline]:
    """Resolve a deployment of a checkpoint folder that has nothing but a config.json."""

    def run(
        model_type: str | None,
        deploy: str | Path | None = None,
        *,
        platform: str = "cuda",
        config: Mapping[str, Any] | None = None,
        manager: PluginManager | None = None,
        **options: Any,
    ) -> ResolvedPipeline:
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        named = {} if model_type is None else {"model_type": model_type}
        (model / "config.json").write_text(json.dumps({**named, **(config or {})}))
        found = {"cpu": CPU, "cuda": CUDA}.get(platform) or Platform(platform, platform)
        return resolve_deployment(model, deploy_config=deploy, manager=manager or plugins, platform=found, **options)

    return run
