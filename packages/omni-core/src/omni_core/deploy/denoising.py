"""Stages that denoise: which of their fields fit together (SF-05). Operators, executors and adapters are checked elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omni_core.deploy.outcome import place_of, stage_name
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import Source

_SELECTOR = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)
_OTHER_PARALLELISM = ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
_OFFLOAD = {"mode": {"module", "layer"}, "components": {"dit", "text_encoder"}}
_LAYER_OPTIONS = {"weight_transfer", "resident_layers"}

Fault = tuple[str, str, str]
"""Field, what is wrong with it, and the way out."""


def sequence_parallel_size(arguments: Mapping[str, Any]) -> int:
    """Return the ranks of sequence parallelism: those of all-gather, or else Ulysses times ring, or else as given."""
    allgather = arguments.get("allgather_degree") or 1
    degrees = allgather if allgather > 1 else math.prod(arguments.get(name) or 1 for name in ("ulysses_degree", "ring_degree"))
    return degrees if degrees > 1 else arguments.get("sequence_parallel_size") or 1


def check_denoising(stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
    """Check that the fields of a stage that denoises fit together.

    Raises:
        ConfigError: They do not; the message has one line for each fault.
    """
    if stage.execution_type is not ExecutionType.DIFFUSION:
        return
    faults = [*_parallel_faults(arguments), *_memory_faults(arguments), *_other_faults(arguments)]
    if faults:
        field, text, hint = faults[0]
        lines = [f"{place_of(sources, name)}: {what}" for name, what, _ in faults[1:]]
        raise ConfigError(
            "\n  ".join([f"{stage_name(stage)}: {text}", *lines]), where=place_of(sources, field), hint=hint, param=field
        )


def _parallel_faults(arguments: Mapping[str, Any]) -> Iterator[Fault]:
    sizes = {name: arguments.get(name) or 1 for name in ("allgather_degree", "ulysses_degree", "ring_degree")}
    others = [name for name in ("ulysses_degree", "ring_degree") if sizes[name] > 1]
    if sizes["allgather_degree"] > 1 and others:
        yield "allgather_degree", f"allgather_degree excludes {' and '.join(others)}", "set one of them"
    given, degrees = arguments.get("sequence_parallel_size"), sequence_parallel_size(arguments)
    if given is not None and given != degrees:
        text = f"sequence_parallel_size is {given}, but its degrees make {degrees}"
        yield "sequence_parallel_size", text, f"set {degrees}, or leave it out"
    if arguments.get("ulysses_a2a_permute") and arguments.get("ulysses_mode") == "advanced_uaa":
        yield "ulysses_a2a_permute", "ulysses_a2a_permute needs ulysses_mode strict", "leave out one of them"
    yield from _sharding_faults(arguments)
    if str(arguments.get("vae_parallel_mode", "")).startswith("spatial") and (
        (arguments.get("vae_patch_parallel_size") or 1) != (size := denoising_ranks(arguments))
    ):
        text = f"vae_parallel_mode {arguments['vae_parallel_mode']} needs vae_patch_parallel_size {size}, all ranks"
        yield "vae_parallel_mode", text, f"set vae_patch_parallel_size: {size}, or vae_parallel_mode: tile"


def _sharding_faults(arguments: Mapping[str, Any]) -> Iterator[Fault]:
    if not arguments.get("use_hsdp"):
        return
    used = [name for name in _OTHER_PARALLELISM if (arguments.get(name) or 1) > 1]
    used += ["enable_expert_parallel"] if arguments.get("enable_expert_parallel") else []
    if used:
        yield "use_hsdp", f"use_hsdp excludes {', '.join(used)}", "set one of them"
    size = arguments.get("hsdp_shard_size")
    if size == 0 or (size is not None and size < -1):
        yield "hsdp_shard_size", f"hsdp_shard_size is {size}", "set the number of devices, or -1"
    elif size in (None, -1) and denoising_ranks({**arguments, "use_hsdp": False}) == 1:
        text = "hsdp_shard_size -1 takes the size of the other parallelism, and there is none"
        yield "use_hsdp", text, "set hsdp_shard_size to the number of devices"


def denoising_ranks(arguments: Mapping[str, Any]) -> int:
    """Return the devices of one replica: the product of all parallel sizes, or of the shards' (DV-01)."""
    shards = arguments.get("hsdp_shard_size")
    if arguments.get("use_hsdp") and shards is not None and shards > 0:
        return int(shards) * (arguments.get("hsdp_replicate_size") or 1)
    sizes = [arguments.get(name) or 1 for name in (*_OTHER_PARALLELISM, "cfg_parallel_size")]
    return math.prod(sizes) * sequence_parallel_size(arguments)


def _memory_faults(arguments: Mapping[str, Any]) -> Iterator[Fault]:
    mode, root = arguments.get("host_weight_runtime_mode"), arguments.get("host_weight_runtime_root")
    if mode in {"preferred", "required"} and not root:
        yield "host_weight_runtime_mode", f"host_weight_runtime_mode {mode} needs host_weight_runtime_root", "name the folder"
    offload = arguments.get("diffusion_offload_config") or {}
    for name, value in offload.items():
        known = _OFFLOAD.get(name)
        values = value if isinstance(value, list) else [value]
        if known is not None and any(item not in known for item in values):
            text = f"diffusion_offload_config.{name} is {value!r}"
            yield "diffusion_offload_config", text, f"the choices are {', '.join(sorted(known))}"
        elif known is None and name != "layer_options":
            text = f"diffusion_offload_config has no {name}"
            yield "diffusion_offload_config", text, "its keys are mode, components and layer_options"
    options = offload.get("layer_options") or {}
    if not isinstance(options, Mapping) or (odd := set(options) - _LAYER_OPTIONS):
        text = (
            f"diffusion_offload_config.layer_options is {options!r}"
            if not isinstance(options, Mapping)
            else (f"diffusion_offload_config.layer_options has no {', '.join(map(str, sorted(odd, key=str)))}")
        )
        yield "diffusion_offload_config", text, "its keys are weight_transfer and resident_layers"
    elif options.get("resident_layers") and options.get("weight_transfer", "rank-local") != "rank-local":
        text = "diffusion_offload_config.layer_options.resident_layers needs weight_transfer rank-local"
        yield "diffusion_offload_config", text, "leave out one of them"


def _other_faults(arguments: Mapping[str, Any]) -> Iterator[Fault]:
    for name in ("diffusers_load_kwargs", "diffusers_call_kwargs"):
        if arguments.get(name) and arguments.get("diffusion_load_format") != "diffusers":
            yield name, f"{name} has no effect without diffusion_load_format: diffusers", "set it, or leave these out"
    if arguments.get("quantization") and arguments.get("diffusion_quantization_config"):
        text = "quantization and diffusion_quantization_config exclude each other"
        yield "diffusion_quantization_config", text, "set one of them"
    for name in ("diffusion_kv_cache_skip_steps", "diffusion_kv_cache_skip_layers"):
        value = arguments.get(name)
        if value is not None and not _SELECTOR.fullmatch(value):
            yield name, f"{name} is {value!r}", "write numbers and ranges, such as 0-9,20"
