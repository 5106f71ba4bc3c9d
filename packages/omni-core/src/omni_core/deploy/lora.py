"""LoRA: which stages take adapters, and how they are set up (LR-01 to LR-06).

`overrides.flag_trees` refuses global flags for vLLM's LoRA on a pipeline of several stages (LR-03) and gives `max_cpu_loras` to
the stages that denoise (LR-06).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.deploy.keys import LORA
from omni_core.deploy.outcome import Outcome, place_of, stage_name
from omni_core.errors import ConfigError, RequestError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.request import LoraAdapter
from omni_core.stage import ResolvedPipeline, ResolvedStage, Source

LORA_OPTIONS = (LORA - {"enable_lora"}) | {
    "lora_dtype",
    "default_mm_loras",
    "enable_tower_connector_lora",
    "specialize_active_lora",
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
    "max_lora_cls_labels",
}
"""Options of vLLM's LoRA that have an effect only together with `enable_lora` (LR-01)."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of `max_lora_rank`: vLLM's `MaxLoRARanks`."""
ADAPTER_STAGE = 0
"""The stage to which a request's adapter is applied (LR-04)."""


def check_lora(stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source]) -> Outcome:
    """Check a stage's LoRA options.

    Raises:
        ConfigError: They do not fit together.
    """
    if stage.execution_type is ExecutionType.DIFFUSION:
        return _check_denoising(stage, arguments, sources)
    if not arguments.get("enable_lora"):
        idle = sorted(name for name in LORA_OPTIONS if arguments.get(name) not in (None, False))
        return Outcome(
            warnings=tuple(
                f"{place_of(sources, name)}: {stage_name(stage)}: {name} has no effect without enable_lora: true"
                for name in idle
            )
        )
    rank = arguments.get("max_lora_rank")
    if rank is not None and rank not in LORA_RANKS:
        higher = next((item for item in LORA_RANKS if item > rank), LORA_RANKS[-1])
        raise ConfigError(
            f"{stage_name(stage)}: max_lora_rank {rank} is none of {', '.join(map(str, LORA_RANKS))}",
            where=place_of(sources, "max_lora_rank"),
            hint=f"set {higher}; adapters of a lower rank work too",
            param="max_lora_rank",
        )
    cached, active = arguments.get("max_cpu_loras"), arguments.get("max_loras") or 1
    if cached is not None and cached < active:
        raise ConfigError(
            f"{stage_name(stage)}: max_cpu_loras {cached} is below max_loras {active}",
            where=place_of(sources, "max_cpu_loras"),
            hint=f"set max_cpu_loras to {active} or more",
            param="max_cpu_loras",
        )
    return Outcome()


def _check_denoising(stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source]) -> Outcome:
    """Check `lora_path`, `lora_scale` and `lora_backend` (LR-05)."""
    if arguments.get("enable_lora") is not None:
        raise ConfigError(
            f"{stage_name(stage)} denoises and has no enable_lora",
            where=place_of(sources, "enable_lora"),
            hint="set lora_path, lora_scale and lora_backend",
            param="enable_lora",
        )
    given = arguments.get("lora_path")
    paths = [given] if isinstance(given, str) else list(given or ())
    backend = arguments.get("lora_backend") or "peft"
    if backend == "distill" and not paths:
        raise ConfigError(
            f"{stage_name(stage)}: lora_backend distill needs a lora_path",
            where=place_of(sources, "lora_backend"),
            hint="set lora_path to the adapter that is to be fused",
            param="lora_path",
        )
    if backend == "peft" and len(paths) > 1:
        raise ConfigError(
            f"{stage_name(stage)}: lora_backend peft loads one adapter at start, and lora_path names {len(paths)}",
            where=place_of(sources, "lora_path"),
            hint="keep one, or set lora_backend: distill",
            param="lora_path",
        )
    if arguments.get("lora_scale") is not None and backend == "distill":
        warning = f"{stage_name(stage)}: lora_scale has no effect with lora_backend distill"
        return Outcome(warnings=(f"{place_of(sources, 'lora_scale')}: {warning}",))
    return Outcome()


def adapter_of(lora_request: Any, pipeline: ResolvedPipeline) -> LoraAdapter | None:
    """Return the adapter that a request asks for: our LoraAdapter, or vLLM's LoRARequest. None asks for none.

    Raises:
        RequestError: Stage 0 takes no adapters, it is no such object, or its folder holds no adapter.
    """
    if lora_request is None:
        return None
    check_adapter_request(pipeline.stages[ADAPTER_STAGE])
    name, path = getattr(lora_request, "name", None), getattr(lora_request, "path", None)
    if not (isinstance(name, str) and name and isinstance(path, (str, Path))):
        raise RequestError(
            f"a LoRA request has a name and a path, {lora_request!r} has not", hint="pass a LoraAdapter", param="lora_request"
        )
    if not Path(path, "adapter_config.json").is_file():
        raise RequestError(
            f"the LoRA adapter {name!r} is not in {path}", hint="name a folder with adapter_config.json", param="lora_request"
        )
    return LoraAdapter(name, str(Path(path).absolute()))


def check_adapter_request(stage: ResolvedStage) -> None:
    """Check that a request's adapter can be applied to a stage, which is the one with the id `ADAPTER_STAGE` (LR-04).

    Raises:
        RequestError: The stage takes no adapters.
    """
    if stage.topology.execution_type is not ExecutionType.DIFFUSION and not stage.engine_args.get("enable_lora"):
        raise RequestError(
            f"stage {stage.name} takes no LoRA adapters",
            hint=f"set enable_lora: true for stage {stage.stage_id} in the deploy file",
            param="lora_request",
        )
