"""Golden cases, deployments of checkpoints with nothing but a config.json, tiny checkpoints, real talkers, straight models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import omni_connectors.plugin
import omni_models_moss.plugin
from omni_core.deploy.resolve import resolve_deployment
from omni_core.model_info import read_model_info
from omni_core.pipeline import PipelineConfig
from omni_core.platforms import CPU, CUDA, Platform
from omni_core.runner import StageInput
from omni_core.speech import ReferenceAudio, SpeechPrompt
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage
from omni_core.target import load_target
from omni_core.testing.ar_stage import running_stage
from omni_core.testing.golden import GoldenCase, give_cases, give_folders, golden_cases, golden_folders, read_recording
from omni_core.testing.model_fixtures import engine_process, inference, model_info, one_rank, unloaded, weights_of
from omni_core.testing.plugins import make_manager
from omni_models_moss.handoff import CODES
from omni_models_moss.pipeline import MOSS_TTS_LOCAL, PIPELINES

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["engine_process", "inference", "model_info", "one_rank", "unloaded", "weights_of"]  # pytest finds them here

Array = np.ndarray[Any, Any]
Frames = list[list[int]]

HERE = Path(__file__).parent
FRAMES_PER_SECOND = 12.5
RUNNERS = ("omni_core.engine.ar.runner:ArRunner", "omni_core.engine.light_runner:LightRunner")


class LocalCase(GoldenCase):
    """One request of a golden folder of MOSS-TTS Local, and what the reference implementation made of it."""

    @property
    def continues(self) -> bool:
        return self.request.get("mode") == "continuation"

    @property
    def whole_wave(self) -> Array | None:
        """One decode of the codes [2, samples]; what the request returned is the same unless it continues a recording."""
        found = self.array("wav_oneshot")
        return self.array("wav") if found is None and not self.continues else found

    @property
    def recording(self) -> ReferenceAudio | None:
        """The request's audio."""
        return read_recording(self.folder / self.request["audio"]) if "audio" in self.request else None

    @property
    def prompt(self) -> SpeechPrompt:
        """The request as a client of the speech API sends it."""
        request = self.request
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
            ref_audio=self.recording,
            ref_text=words,
        )


_KINDS: dict[str, Callable[[LocalCase], bool]] = {
    "case": lambda case: True,
    "decoded": lambda case: case.whole_wave is not None,
    "continued": lambda case: case.continues,
    "recorded": lambda case: case.recording is not None,
}
"""Arguments of tests, and the golden cases that they are run for."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with `golden_folder` for every folder, and with an argument of `_KINDS` for every golden case of that kind."""
    folders = golden_folders(HERE, ["moss-tts-local"])
    give_folders(metafunc, folders)
    for kind, chosen in _KINDS.items():
        give_cases(metafunc, folders, LocalCase, kind, chosen)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The checkpoint of MOSS-TTS Local that comes with these tests."""
    return HERE / "data" / "moss-tts-local"


@pytest.fixture(scope="session")
def cases_of() -> Callable[[Path], list[LocalCase]]:
    """Return the golden cases of a folder."""
    return partial(golden_cases, kind=LocalCase)


@pytest.fixture(scope="session")
def stage_of() -> Callable[..., ResolvedStage]:
    """Return a resolved stage over a checkpoint folder, by default the codec of MOSS-TTS Local."""
    return _stage


def _stage(
    folder: Path,
    stage_id: int = 1,
    *,
    pipeline: PipelineConfig = MOSS_TTS_LOCAL,
    options: Mapping[str, Any] | None = None,
    **values: Any,
) -> ResolvedStage:
    architecture = pipeline.architecture(stage_id)
    defaults: dict[str, Any] = {
        "pipeline": pipeline.model_type,
        "topology": pipeline.stages[stage_id],
        "model": str(folder),
        "architecture": architecture,
        "architecture_target": omni_models_moss.plugin.omni_architectures()[architecture],
        "runner": RUNNERS[stage_id],
        "inputs": (ResolvedEdge(0, 1, "shared_memory", "none:None", stream=options or {}),) if stage_id == 1 else (),
    }
    return ResolvedStage(**{**defaults, **values})


@pytest.fixture
def resolve(tmp_path: Path) -> Callable[..., ResolvedPipeline]:
    """Resolve a deployment with core, the connectors and this package, whatever else is installed."""
    manager = make_manager({"omni-connectors": omni_connectors.plugin, "omni-models-moss": omni_models_moss.plugin})

    def run(deploy: str | Path | None = None, *, platform: str = "cuda", **config: Any) -> ResolvedPipeline:
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(config or {"model_type": "moss_tts_local"}))
        found = {"cpu": CPU, "cuda": CUDA}.get(platform) or Platform(platform, platform)
        return resolve_deployment(model, deploy_config=deploy, manager=manager, platform=found)

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build a tiny checkpoint by its name and variant, once."""
    entries = {entry.name: entry for entry in omni_models_moss.plugin.omni_tiny_models()}

    @cache
    def build(name: str, variant: str | None = None, seed: int = 0) -> Path:
        entry = entries[name]
        folder = tmp_path_factory.mktemp("tiny") / name
        load_target(entry.target)(folder, variant or entry.variants[0], seed)
        return folder

    return build


class Talker:
    """The talker of a checkpoint on a real engine."""

    def __init__(self, runner: Any, speech: Any) -> None:
        self.runner = runner
        self.speech = speech

    async def speak(self, name: str, prompt: SpeechPrompt, **sampling: Any) -> tuple[Frames, str | None]:
        """Return the rows of a request and why it ended; greedy where nothing else is said."""
        prepared = self.speech.prepare(prompt)
        values = {"temperature": 0.0, "detokenize": False, **prepared.sampling.get(0, {}), **sampling}
        rows, reason = [], None
        async for output in self.runner.run(StageInput(name, prepared.inputs, values)):
            if CODES in output.tensors:
                rows += np.asarray(output.tensors[CODES]).tolist()
            reason = output.finish_reason
        return rows, reason


@pytest.fixture
def talker(engine_process: None) -> Callable[..., Any]:
    """A function from a checkpoint's folder to an async context with its `Talker`."""
    return _running


@asynccontextmanager
async def _running(folder: Path, **engine: Any) -> AsyncIterator[Talker]:
    info = read_model_info(folder)
    pipeline = next(found for found in PIPELINES if found.model_type == info.model_type)
    engine_args = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 128,  # prompts come in pieces, between the steps of others
        "max_model_len": 512,
        "kv_cache_memory_bytes": 64 << 20,
        "enable_prefix_caching": True,  # what was spoken alone is partly there when it is spoken again in company
        **engine,
    }
    async with running_stage(_stage(folder, 0, pipeline=pipeline, engine_args=engine_args), timeout_s=200) as runner:
        yield Talker(runner, load_target(pipeline.speech or "")(info))


class StraightQwen3:
    """A decoder of the Qwen3 kind in plain torch, which reads all rows anew each time.

    Args:
        weights: Tensors by name.
        prefix: Of the decoder's names.
        config: Its sizes.
    """

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, config: Mapping[str, Any]) -> None:
        self.weights, self.prefix, self.config = weights, prefix, config

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normed states [n, hidden] of rows [n, hidden]."""
        for index in range(self.config["num_hidden_layers"]):
            x = x + self._attend(self._norm(x, f"layers.{index}.input_layernorm"), f"layers.{index}.self_attn")
            y = self._norm(x, f"layers.{index}.post_attention_layernorm")
            gate, up = (self._product(y, f"layers.{index}.mlp.{part}_proj") for part in ("gate", "up"))
            x = x + self._product(gate * gate.sigmoid() * up, f"layers.{index}.mlp.down_proj")
        return self._norm(x, "norm")

    def _product(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{self.prefix}.{name}.weight"].T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return x * scale * self.weights[f"{self.prefix}.{name}.weight"]

    def _attend(self, x: Tensor, name: str) -> Tensor:
        import torch

        count, head, config = len(x), self.config["head_dim"], self.config
        q, k, v = (self._product(x, f"{name}.{part}_proj").view(count, -1, head).transpose(0, 1) for part in "qkv")
        angles = torch.arange(count)[:, None] * config["rope_theta"] ** (-torch.arange(0, head, 2) / head)
        turn = torch.polar(torch.ones_like(angles), angles)

        def turned(y: Tensor) -> Tensor:
            low, high = y.chunk(2, -1)
            found = torch.complex(low.contiguous(), high.contiguous()) * turn
            return torch.cat([found.real, found.imag], -1)

        q, k = turned(self._norm(q, f"{name}.q_norm")), turned(self._norm(k, f"{name}.k_norm"))
        times = config["num_attention_heads"] // config["num_key_value_heads"]
        k, v = k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)
        scores = q @ k.transpose(1, 2) / head**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        seen = scores.softmax(-1) @ v
        return self._product(seen.transpose(0, 1).reshape(count, -1), f"{name}.o_proj")


@pytest.fixture(scope="session")
def straight_qwen3() -> type[StraightQwen3]:
    """The straight-line decoder."""
    return StraightQwen3


@pytest.fixture(scope="session")
def recording() -> Callable[..., Any]:
    """Return noise as a recording: so many seconds at so many Hz, one channel, another one for another seed."""

    def make(seed: int = 0, seconds: float = 1.0, rate: int = 24000) -> ReferenceAudio:
        noise = np.random.default_rng(seed).normal(0, 0.1, int(seconds * rate)).astype(np.float32)
        return ReferenceAudio(noise, rate)

    return make
