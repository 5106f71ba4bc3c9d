"""Deployments of checkpoints that have nothing but a config.json, tiny checkpoints, real talkers, and straight-line models."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import multiprocessing.util
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import omni_connectors.plugin
import omni_models_moss.plugin
from omni_core.deploy.resolve import resolve_deployment
from omni_core.model_info import read_model_info
from omni_core.platforms import CPU, CUDA, Platform
from omni_core.runner import StageInput
from omni_core.speech import SpeechPrompt
from omni_core.stage import ResolvedPipeline, ResolvedStage
from omni_core.target import load_target
from omni_core.testing.plugins import make_manager
from omni_models_moss.handoff import CODES
from omni_models_moss.pipeline import PIPELINES

if TYPE_CHECKING:
    from torch import Tensor

Frames = list[list[int]]


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
def talker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """A function from a checkpoint's folder to an async context with its `Talker`."""
    # An engine's start sets these in this process; they must not reach the next test.
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    # The first engine core pays for the imports, the others are forked from there.
    multiprocessing.util.get_temp_dir()  # the server's socket is in it, so it must outlive a test's own folder
    multiprocessing.set_forkserver_preload(["omni_core.engine.ar.preload"])
    yield _running
    gc.collect()  # what a stopped engine leaves is collected under this test's filters, not in some later test


@asynccontextmanager
async def _running(folder: Path, **engine: Any) -> AsyncIterator[Talker]:
    from omni_core.engine.ar.runner import ArRunner

    info = read_model_info(folder)
    pipeline = next(found for found in PIPELINES if found.model_type == info.model_type)
    architecture = pipeline.architecture(0)
    stage = ResolvedStage(
        pipeline=pipeline.model_type,
        topology=pipeline.stages[0],
        model=str(folder),
        architecture=architecture,
        architecture_target=omni_models_moss.plugin.omni_architectures()[architecture],
        runner="omni_core.engine.ar.runner:ArRunner",
        engine_args={
            "dtype": "float32",
            "enforce_eager": True,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 128,  # prompts come in pieces, between the steps of others
            "max_model_len": 512,
            "kv_cache_memory_bytes": 64 << 20,
            "enable_prefix_caching": True,  # what was spoken alone is partly there when it is spoken again in company
            **engine,
        },
    )
    runner = ArRunner(stage)
    try:
        await runner.start()
        async with asyncio.timeout(200):
            yield Talker(runner, load_target(pipeline.speech or "")(info))
    finally:
        await runner.stop()


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
def weights_of() -> Callable[[Path], dict[str, Tensor]]:
    """Return the tensors of a checkpoint in float32."""

    def load(folder: Path) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}

    return load


@pytest.fixture(scope="session")
def recording() -> Callable[..., Any]:
    """Return noise as a recording: so many seconds at so many Hz, one channel, another one for another seed."""
    from omni_core.speech import ReferenceAudio

    def make(seed: int = 0, seconds: float = 1.0, rate: int = 24000) -> ReferenceAudio:
        noise = np.random.default_rng(seed).normal(0, 0.1, int(seconds * rate)).astype(np.float32)
        return ReferenceAudio(noise, rate)

    return make
