"""The arguments of a stage's engine: the deploy file's, and what an AR engine needs them to be. Runs in the stage host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.capabilities import ModelCapabilities
from omni_core.deploy.keys import CHAT
from omni_core.engine.ar.checkpoint import has_tokenizer
from omni_core.engine.profiling import profile_folder
from omni_core.engine.vllm_bridge import AsyncEngineArgs, UniProcExecutor
from omni_core.engine.watch import RUN_DIR_ENV
from omni_core.errors import ConfigError
from omni_core.observe.endpoint import traces_endpoint
from omni_core.stage import ResolvedStage

CPU_KV_CACHE_BYTES = 1 << 29
"""KV cache of a stage on a CPU where nothing else is said: half a GiB, so that several stages fit into a small machine."""


@dataclass(frozen=True)
class HfOverride:
    """Choose the part of a checkpoint's configuration that a stage's engine reads. Pickled into the engine core."""

    architecture: str | None
    config_name: str | None
    values: Mapping[str, Any]

    def __call__(self, config: Any) -> Any:
        """Return the configuration to use."""
        for part in (self.config_name or "").split("."):
            if part and hasattr(config, part):
                config = getattr(config, part)
        if self.values:
            config.update(dict(self.values))
        if self.architecture is not None:
            config.architectures = [self.architecture]
        return config


def engine_environment(stage: ResolvedStage) -> dict[str, str]:
    """Return the environment that vLLM reads in the stage host and in its engine core."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    run_dir = os.environ.get(RUN_DIR_ENV)
    return {
        # vLLM never removes its sockets; in the run directory they go with it.
        **({"VLLM_RPC_BASE_PATH": run_dir} if run_dir else {}),
        "VLLM_USE_V2_MODEL_RUNNER": "1" if stage.model_runner == "v2" else "0",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # Several stages share one machine; with more threads than cores a step takes ten times as long.
        "OMP_NUM_THREADS": threads,
        **stage.env,
    }


def checkpoint_folder(stage: ResolvedStage) -> Path:
    """Return the folder with the stage's configuration and weights."""
    return Path(stage.model, stage.topology.model_subdir or "")


def tokenizer_folder(stage: ResolvedStage) -> Path | None:
    """Return the folder with the stage's tokenizer, None if there is none."""
    subdir = stage.topology.tokenizer_subdir
    folder = Path(stage.model, subdir) if subdir else checkpoint_folder(stage)
    return folder if has_tokenizer(folder) else None


def build_engine_args(stage: ResolvedStage, capabilities: ModelCapabilities, replica: int = 0) -> Any:
    """Return vLLM's AsyncEngineArgs of a stage.

    Raises:
        ConfigError: vLLM has no such argument.
    """
    given = {name: value for name, value in stage.engine_args.items() if name not in CHAT}
    if capabilities.computes_inputs:
        given.pop("reasoning_parser", None)  # a flag gives it to every stage, and this one writes no text
    values = {**_defaults(stage, capabilities, replica), **given, **_forced(stage, capabilities, given)}
    try:
        return AsyncEngineArgs(**values)
    except TypeError as error:
        raise ConfigError(
            f"vLLM refuses the engine arguments: {error}", where=f"stage {stage.name}", hint="correct the deploy file"
        ) from error


def _defaults(stage: ResolvedStage, capabilities: ModelCapabilities, replica: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"disable_log_stats": True, "enable_log_requests": False}
    if (endpoint := traces_endpoint()) is not None:
        defaults["otlp_traces_endpoint"] = endpoint
    if (folder := profile_folder(stage, replica)) is not None:
        # The engine core alone: what the host does for an engine is seldom what takes its time.
        defaults["profiler_config"] = {"profiler": "torch", "torch_profiler_dir": str(folder), "ignore_frontend": True}
    if stage.platform == "cpu":
        # With both, vLLM skips the profiling run; compilation gains nothing on stages of this kind.
        defaults |= {"enforce_eager": True, "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES}
    if capabilities.computes_inputs:
        # The checkpoint's generation_config belongs to its text model; sampling comes from the deploy file.
        defaults["generation_config"] = "vllm"
    return defaults


def _forced(stage: ResolvedStage, capabilities: ModelCapabilities, given: Mapping[str, Any]) -> dict[str, Any]:
    tokenizer = tokenizer_folder(stage)
    forced: dict[str, Any] = {"model": str(checkpoint_folder(stage))}
    overrides = given.get("hf_overrides")
    if stage.architecture_target is not None or stage.topology.hf_config_name or overrides:
        if callable(overrides):
            raise ConfigError("hf_overrides must be a mapping", where=f"stage {stage.name}", hint="write keys and values")
        architecture = stage.architecture if stage.architecture_target is not None else None
        forced["hf_overrides"] = HfOverride(architecture, stage.topology.hf_config_name, dict(overrides or {}))
    if capabilities.computes_inputs or tokenizer is None:
        forced["skip_tokenizer_init"] = True
    elif stage.topology.tokenizer_subdir:
        forced["tokenizer"] = str(tokenizer)
    # The class, not its name: on a CPU vLLM takes the name for `mp`, which starts a process more and imports all of vLLM anew.
    if _ranks(given) == 1 and given.get("distributed_executor_backend", "uni") == "uni":
        forced["distributed_executor_backend"] = UniProcExecutor
    if not capabilities.computes_inputs and capabilities.capture is None:
        return forced
    _refuse(stage, capabilities, given)
    on_cpu = stage.platform == "cpu"
    scheduler = "ArScheduler" if on_cpu else "AsyncArScheduler"
    forced |= {
        "worker_cls": "omni_core.engine.ar.worker.ArWorker",
        "scheduler_cls": stage.topology.scheduler_cls or f"omni_core.engine.ar.scheduler.{scheduler}",
    }
    if not capabilities.computes_inputs:
        return forced
    forced["enable_prefix_caching"] = bool(given.get("enable_prefix_caching"))  # vLLM's own default is on
    if stage.model_runner == "v2" or not given.get("enforce_eager", on_cpu):
        # Both the second runner and compiled graphs need to know that inputs come as embeddings.
        forced["enable_prompt_embeds"] = True
    return forced


def _ranks(given: Mapping[str, Any]) -> int:
    return int(given.get("tensor_parallel_size") or 1) * int(given.get("pipeline_parallel_size") or 1)


def _refuse(stage: ResolvedStage, capabilities: ModelCapabilities, given: Mapping[str, Any]) -> None:
    where = f"stage {stage.name}"
    for name in ("worker_cls", "scheduler_cls"):
        if name in given:
            raise ConfigError(f"{name} is set by the AR engine", where=where, hint=f"leave out {name}")
    computes = capabilities.computes_inputs
    if computes and given.get("enable_prefix_caching") and not capabilities.cacheable_prompts:
        raise ConfigError(
            "this model computes its inputs from placeholder ids, which tell no prefix from another",
            where=where,
            hint="leave out enable_prefix_caching",
        )
    kind = "a model that computes its inputs" if computes else "a model whose hidden states go to the next stage"
    if given.get("speculative_config"):
        raise ConfigError(f"{kind} cannot be speculated", where=where, hint="drop speculative_config")
    if int(given.get("pipeline_parallel_size") or 1) > 1:
        raise ConfigError(f"{kind} runs on one pipeline rank", where=where, hint="set pipeline_parallel_size to 1")
