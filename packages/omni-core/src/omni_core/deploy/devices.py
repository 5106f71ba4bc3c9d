"""Devices of stages: how many a stage needs, and which replica gets which (DV-01 to DV-05)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omni_core.deploy.denoising import sequence_parallel_size
from omni_core.errors import ConfigError
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import ResolvedStage, Source


def world_size(engine_args: Mapping[str, Any]) -> int:
    """Return how many ranks of one replica run on this host (DV-01).

    They are tensor x local data x pipeline parallel sizes; for a stage that denoises also x sequence x guidance, or its shards.
    """
    return math.prod(_factors(engine_args).values())


def _factors(engine_args: Mapping[str, Any]) -> dict[str, int]:
    """Return the factors of the ranks; those that only stages which denoise have are there where they are set."""
    shards = engine_args.get("hsdp_shard_size")
    if engine_args.get("use_hsdp") and shards is not None and shards > 0:
        return {"hsdp_shard_size": shards, "hsdp_replicate_size": engine_args.get("hsdp_replicate_size") or 1}
    sequence = sequence_parallel_size(engine_args)
    guidance = engine_args.get("cfg_parallel_size") or 1
    local = engine_args.get("data_parallel_size_local")
    return {
        "tensor_parallel_size": engine_args.get("tensor_parallel_size") or 1,
        "data_parallel_size": (engine_args.get("data_parallel_size") or 1) if local is None else local,
        "pipeline_parallel_size": engine_args.get("pipeline_parallel_size") or 1,
        **({"sequence_parallel_size": sequence} if sequence > 1 else {}),
        **({"cfg_parallel_size": guidance} if guidance > 1 else {}),
    }


def parse_devices(devices: str) -> list[str]:
    """Return the ids of a comma list."""
    return [part.strip() for part in devices.split(",") if part.strip()]


def check_devices(
    stage: StagePipelineConfig,
    devices: str | None,
    num_replicas: int,
    engine_args: Mapping[str, Any],
    sources: Mapping[str, Source],
) -> None:
    """Check that a stage's devices fit the ranks it runs (DV-02, DV-03).

    Raises:
        ConfigError: They do not; where a broadcast --tensor-parallel-size is the reason, the hint says so (DV-04).
    """
    if devices is None:
        return
    factors = _factors(engine_args)
    world = math.prod(factors.values())
    if world == 0:
        return
    ids = parse_devices(devices)
    where = sources["devices"].place if "devices" in sources else ""
    name = f"stage {stage.stage_id} ({stage.model_stage})"
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{name} lists a device twice in {devices!r}", where=where, hint="list each once", param="devices")
    accepted = sorted({world, world * num_replicas})
    if len(ids) in accepted:
        if num_replicas > 1:
            split_devices(devices, num_replicas, world, where=where, name=name)
        return
    product = " x ".join(f"{key} {value}" for key, value in factors.items())
    replicas = f" and has {num_replicas} replicas" if num_replicas > 1 else ""
    raise ConfigError(
        f"{name} lists {len(ids)} device(s), {devices!r}, but runs {world} rank(s) ({product}){replicas}; "
        f"it can list {' or '.join(map(str, accepted))}",
        where=where,
        hint=_device_hint(stage, ids, num_replicas, factors, sources),
        param="devices",
    )


def _device_hint(
    stage: StagePipelineConfig, ids: list[str], replicas: int, factors: Mapping[str, int], sources: Mapping[str, Source]
) -> str:
    size = factors.get("tensor_parallel_size", 1)
    rest = math.prod(factors.values()) // size
    hint = "change devices or the parallel sizes"
    if size > 1 and len(ids) in {rest, rest * replicas}:
        example = f'{{"{stage.stage_id}": {{"tensor_parallel_size": {size}, "devices": "{",".join(map(str, range(size)))}"}}}}'
        given = "--tensor-parallel-size is given to every stage, but devices are not"
        told = given if sources.get("tensor_parallel_size", Source("")).layer == "flag" else "the devices fit size 1"
        hint = (
            f"{told}: set both for this stage, --stage-overrides '{example}', or tensor_parallel_size only where it is needed"
        )
    return hint


def split_devices(devices: str, num_replicas: int, world: int, *, where: str = "", name: str = "the stage") -> list[str]:
    """Return the device list of each replica (DV-05).

    A pool of `num_replicas * world` ids is cut in slices. A template of `world` ids counts from 0 inside a replica: replica r
    gets `r * world + id`.

    Raises:
        ConfigError: There is another number of ids, or a template's id is not in [0, world).
    """
    ids = parse_devices(devices)
    if len(ids) == num_replicas * world:
        return [",".join(ids[first : first + world]) for first in range(0, len(ids), world)]
    if len(ids) != world:
        raise ConfigError(
            f"{name} lists {len(ids)} devices for {num_replicas} replicas of {world}",
            where=where,
            hint=f"list {world} or {num_replicas * world}",
            param="devices",
        )
    if not all(item.isdecimal() and int(item) < world for item in ids):
        raise ConfigError(
            f"{name} lists {devices!r} for each of {num_replicas} replicas; such ids count from 0 to {world - 1}",
            where=where,
            hint=f"list {num_replicas * world} devices to name all of them",
            param="devices",
        )
    return [",".join(str(replica * world + int(item)) for item in ids) for replica in range(num_replicas)]


def replica_devices(stage: ResolvedStage) -> list[str | None]:
    """Return the device list of each replica of a stage; None where the launcher's devices are used as they are."""
    if stage.devices is None:
        return [None] * stage.num_replicas
    return list(split_devices(stage.devices, stage.num_replicas, world_size(stage.engine_args), name=f"stage {stage.name}"))
