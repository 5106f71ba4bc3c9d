"""Golden cases: requests and what the reference implementation made of them."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.util
import os
import wave
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omni_connectors.plugin
import omni_models_qwen.plugin
from omni_core.deploy.resolve import resolve_deployment
from omni_core.model_info import ModelInfo
from omni_core.pipeline import PipelineConfig
from omni_core.platforms import CPU, CUDA, Platform
from omni_core.plugins import PluginManager
from omni_core.runner import StageInput
from omni_core.speech import ReferenceAudio, SpeechPrompt
from omni_core.stage import ResolvedPipeline, ResolvedStage
from omni_core.testing.plugins import make_manager
from omni_models_qwen.qwen3_tts.handoff import CODES
from omni_models_qwen.qwen3_tts.pipeline import QWEN3_TTS

HERE = Path(__file__).parent
GOLDEN = {
    "qwen3_tts": ("qwen3-tts-custom_voice", "qwen3-tts-base", "qwen3-tts-voice_design"),
    "qwen2_5_omni": ("qwen2.5-omni",),
    "qwen3_omni": ("qwen3-omni-moe",),
    "omni_chat": ("qwen3-omni-moe", "qwen2.5-omni"),
}
"""Golden folders by the folder of the tests that read them; the first one is in `data/`, too, with fewer cases."""


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


def _folders(tests: str) -> list[tuple[Path, bool]]:
    """Return the golden folders of a folder of tests, and for each whether it is outside this package."""
    names = GOLDEN.get(tests, GOLDEN["qwen3_tts"])
    root = next(_golden_roots(), None)
    shared = [root / name for name in names] if root else []
    return [(HERE / "data" / names[0], False), *((folder, True) for folder in shared if folder.is_dir())]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the argument `case` for every golden case, and one with `golden_folder` for every folder."""
    folders = _folders(metafunc.definition.path.parent.name)
    if "golden_folder" in metafunc.fixturenames:
        params = [
            pytest.param(folder, id=("shared-" if shared else "") + folder.name, marks=[pytest.mark.golden] * shared)
            for folder, shared in folders
        ]
        metafunc.parametrize("golden_folder", params, scope="module")
    if "case" in metafunc.fixturenames:
        params = [
            pytest.param(
                GoldenCase(folder, record["id"]),
                id=f"{'shared-' if shared else ''}{folder.name}-{record['id']}",
                marks=[pytest.mark.golden] * shared,
            )
            for folder, shared in folders
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


@pytest.fixture
def inference() -> Iterator[None]:
    """Run a test as the light runner runs a model: one thread, no gradients."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def engine_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test start engines: quiet, on one thread, forked from a process that pays once for the imports."""
    # An engine's start sets these in this process; they must not reach the next test.
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    multiprocessing.util.get_temp_dir()  # the server's socket is in it, so it must outlive a test's own folder
    multiprocessing.set_forkserver_preload(["omni_core.engine.ar.preload"])


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """vLLM's layers ask for their rank; here there is one."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("rank") / "store"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{place}", 0, "gloo")
        initialize_model_parallel(1, 1)
    yield
    destroy_model_parallel()
    destroy_distributed_environment()


@pytest.fixture(scope="module")
def unloaded(one_rank: None) -> Callable[[ResolvedStage], Any]:
    """Return a stage's model without its weights, in this process."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    from omni_core.engine.ar.engine_args import build_engine_args
    from omni_core.engine.ar.model_class import capabilities_of, load_model_class
    from omni_core.engine.vllm_plugin import register

    def make(stage: ResolvedStage) -> Any:
        register()
        assert stage.architecture_target is not None
        kind = load_model_class(stage.architecture, stage.architecture_target, where="test")
        config = build_engine_args(stage, capabilities_of(kind)).create_engine_config()
        with set_current_vllm_config(config), set_default_torch_dtype(torch.float32):
            return kind(vllm_config=config)

    return make


@pytest.fixture(scope="module")
def unloaded_talker(unloaded: Callable[[ResolvedStage], Any]) -> Callable[[ResolvedStage], Any]:
    """Return a talker for three requests without its weights, in this process."""
    small = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 3, "max_model_len": 512}
    return lambda stage: unloaded(replace(stage, engine_args={**small, "kv_cache_memory_bytes": 64 << 20}))


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Path], dict[str, Any]]:
    """Return the tensors of a checkpoint folder in float32."""

    def load(folder: Path) -> dict[str, Any]:
        from safetensors.torch import load_file

        return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}

    return load


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
def conversation_of() -> Callable[[GoldenCase], dict[str, Any]]:
    """Return an omni model's golden case as the Python API takes it, for a thinker that has no voice."""

    from omni_core.testing.conversations import golden_conversation

    def make(case: GoldenCase) -> dict[str, Any]:
        found = golden_conversation(case.folder, case.record)
        del found["chat"]["voice"]
        return found

    return make
