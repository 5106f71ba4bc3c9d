"""Capture of the hidden states of vLLM's Llama: what a plugin declares for it, and a stage with the tiny one of `tiny_ar`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omni_core.capabilities import HiddenCapture, ModelCapabilities
from omni_core.engine.ar import model_class
from omni_core.hookspecs import hookimpl
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_core.testing.plugins import make_manager

LAYERS: Mapping[str, Any] = {"embeds": 0, "between": 1, "last": "last"}
ENGINE_ARGS: Mapping[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 16 << 20,
    "dtype": "float32",
    "block_size": 32,
    "num_gpu_blocks_override": 7,
    "max_num_batched_tokens": 24,
    "enable_prefix_caching": True,
}
"""Short steps, so that prompts come in parts, and a cache so small that requests displace each other."""


def layers(hf_config: Any) -> Mapping[str, Any]:
    """Return what is captured of the tiny Llama."""
    assert hf_config.num_hidden_layers == 2
    return LAYERS


class CapturingPlugin:
    """Declares that hidden states of vLLM's Llama are captured."""

    @hookimpl
    def omni_model_capabilities(self, model_class: type) -> ModelCapabilities | None:
        """Declare the states of the one class."""
        if model_class.__name__ != "LlamaForCausalLM":
            return None
        return ModelCapabilities(capture=HiddenCapture(f"{__name__}:layers"))


def capturing_stage(folder: Path, *, model_runner: str = "v1", **engine_args: Any) -> ResolvedStage:
    """Return a stage with the tiny Llama that hands its states on."""
    return ResolvedStage(
        pipeline="tiny",
        topology=StagePipelineConfig(stage_id=0, model_stage="thinker"),
        model=str(folder),
        architecture="LlamaForCausalLM",
        architecture_target=None,
        runner="omni_core.engine.ar.runner:ArRunner",
        model_runner="v2" if model_runner == "v2" else "v1",
        engine_args={**ENGINE_ARGS, **engine_args},
        outputs=(ResolvedEdge(0, 1, "shm", "acme:Connector"),),
    )


def install_plugin(patch: pytest.MonkeyPatch) -> None:
    """Let the plugin be found in this process."""
    manager = make_manager({"acme": CapturingPlugin()})
    patch.setattr(model_class, "plugin_manager", lambda: manager)
