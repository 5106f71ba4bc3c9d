"""Golden cases: requests and what the reference implementation made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_connectors.plugin
import omni_models_qwen.plugin
from omni_core.deploy.resolve import resolve_deployment
from omni_core.pipeline import PipelineConfig
from omni_core.platforms import CPU, CUDA, Platform
from omni_core.plugins import PluginManager
from omni_core.runner import StageInput
from omni_core.speech import SpeechPrompt
from omni_core.stage import ResolvedPipeline, ResolvedStage
from omni_core.testing.golden import GoldenCase, give_cases, give_folders, golden_cases, golden_folders, read_recording
from omni_core.testing.model_fixtures import engine_process, inference, model_info, one_rank, unloaded, weights_of
from omni_core.testing.plugins import make_manager
from omni_models_qwen.qwen3_tts.handoff import CODES
from omni_models_qwen.qwen3_tts.pipeline import QWEN3_TTS

__all__ = ["engine_process", "inference", "model_info", "one_rank", "unloaded", "weights_of"]  # pytest finds them here

HERE = Path(__file__).parent
GOLDEN = {
    "qwen3_tts": ("qwen3-tts-custom_voice", "qwen3-tts-base", "qwen3-tts-voice_design"),
    "qwen2_5_omni": ("qwen2.5-omni",),
    "qwen3_omni": ("qwen3-omni-moe",),
    "omni_chat": ("qwen3-omni-moe", "qwen2.5-omni"),
}
"""Golden folders by the folder of the tests that read them; the first one is in `data/`, too, with fewer cases."""


class QwenCase(GoldenCase):
    """One request of a golden folder."""

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
            ref_audio=read_recording(self.folder / request["ref_audio"]) if "ref_audio" in request else None,
            ref_text=request.get("ref_text"),
            x_vector_only_mode=request.get("x_vector_only_mode"),
            non_streaming_mode=request.get("non_streaming_mode"),
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the argument `case` for every golden case, and one with `golden_folder` for every folder."""
    names = GOLDEN.get(metafunc.definition.path.parent.name, GOLDEN["qwen3_tts"])
    folders = golden_folders(HERE, names)
    give_folders(metafunc, folders)
    give_cases(metafunc, folders, QwenCase)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The checkpoint that comes with these tests: a CustomVoice one."""
    return HERE / "data" / "qwen3-tts-custom_voice"


@pytest.fixture(scope="session")
def cases_of() -> Callable[[Path], list[QwenCase]]:
    """Return the golden cases of a folder."""
    return partial(golden_cases, kind=QwenCase)


@pytest.fixture(scope="session")
def resolved_stage() -> Callable[..., ResolvedStage]:
    """Return a resolved stage of a pipeline over a checkpoint folder."""
    targets = omni_models_qwen.plugin.omni_architectures()

    def make(pipeline: PipelineConfig, folder: Path, stage_id: int = 0, **values: Any) -> ResolvedStage:
        architecture = pipeline.architecture(stage_id)
        defaults: dict[str, Any] = {
            "pipeline": pipeline.model_type,
            "topology": pipeline.stages[stage_id],
            "model": str(folder),
            "architecture": architecture,
            "architecture_target": targets.get(architecture),
            "runner": "omni_core.engine.ar.runner:ArRunner",
        }
        return ResolvedStage(**{**defaults, **values})

    return make


@pytest.fixture(scope="session")
def stage_of(resolved_stage: Callable[..., ResolvedStage]) -> Callable[..., ResolvedStage]:
    """Return a resolved stage of the two-stage pipeline of Qwen3-TTS over a checkpoint folder."""
    return partial(resolved_stage, QWEN3_TTS)


@pytest.fixture(scope="module")
def unloaded_talker(unloaded: Callable[[ResolvedStage], Any]) -> Callable[[ResolvedStage], Any]:
    """Return a talker for three requests without its weights, in this process."""
    small = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 3, "max_model_len": 512}
    return lambda stage: unloaded(replace(stage, engine_args={**small, "kv_cache_memory_bytes": 64 << 20}))


@pytest.fixture(scope="session")
def flip_weights() -> Callable[[Path, Iterable[str]], None]:
    """Change tensors of a checkpoint folder: their rows in the opposite order."""

    def change(folder: Path, names: Iterable[str]) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        for name in names:
            weights[name] = weights[name].flip(0).contiguous()
        (folder / "model.safetensors").unlink()  # what is mapped into the engine's memory stays as it is
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return change


@pytest.fixture(scope="session")
def listen() -> Callable[..., Coroutine[Any, Any, tuple[list[list[int]], str | None]]]:
    """Run a request in a talker and return its frames, and why it ended."""

    async def run(runner: Any, request: StageInput) -> tuple[list[list[int]], str | None]:
        frames, reason = [], None
        async for output in runner.run(request):
            if CODES in output.tensors:
                frames += np.asarray(output.tensors[CODES]).tolist()
            reason = output.finish_reason
        return frames, reason

    return run


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


@pytest.fixture
def overlay(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write an overlay on a bundled deploy file."""

    def write(base: str, text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(f"base_config: {base}\n{text}")
        return path

    return write


@pytest.fixture(scope="session")
def conversation_of() -> Callable[[QwenCase], dict[str, Any]]:
    """Return an omni model's golden case as the Python API takes it, for a thinker that has no voice."""

    from omni_core.testing.conversations import golden_conversation

    def make(case: QwenCase) -> dict[str, Any]:
        found = golden_conversation(case.folder, case.record)
        del found["chat"]["voice"]
        return found

    return make
