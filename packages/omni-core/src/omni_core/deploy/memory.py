"""What a deployment takes of each device's memory: a table that needs neither a GPU nor the weights themselves.

The sum is that of the admission at start (DV-07): what each stage claims, 2 GiB for each stage that captures graphs, 1 GiB for
whatever else uses the device, and a margin of 1 GiB, against the device's capacity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from omni_core.deploy.devices import parse_devices, replica_devices, world_size
from omni_core.deploy.weights import Weights, stage_weights
from omni_core.pipeline import ExecutionType
from omni_core.stage import ResolvedPipeline, ResolvedStage

GIB = 1 << 30
GRAPH_RESERVE = 2 * GIB
EXTERNAL = GIB
MARGIN = GIB
ENGINE_UTILIZATION = 0.92
"""vLLM's `gpu_memory_utilization` where nothing sets it."""
CPU_KV_CACHE_BYTES = 1 << 29
"""KV cache of a stage on a CPU where nothing sets it (`engine.ar.engine_args`)."""

Verdict = Literal["fits", "does not fit", "unknown"]


@dataclass(frozen=True)
class Share:
    """What one rank of a stage takes of one device, in bytes; None where that is not known."""

    device: str
    stage: str
    """The stage's name, and its replica where there are several."""
    weights: int | None
    what: str
    """Which weights these are."""
    kv_cache: int | None
    """KV cache; None where it is what profiling leaves of the claim."""
    claim: int | None
    """All that the stage may take, graphs apart."""
    basis: str
    """What the claim follows from."""
    graphs: int

    @property
    def too_small(self) -> bool:
        """Whether the weights alone are more than the stage may take."""
        return self.weights is not None and self.claim is not None and self.weights > self.claim


@dataclass(frozen=True)
class DeviceMemory:
    """One device with all that is on it."""

    device: str
    shares: tuple[Share, ...]
    capacity: int | None

    @property
    def reserves(self) -> int:
        """What is kept free of stages: other programs and the margin."""
        return EXTERNAL + MARGIN

    @property
    def needed(self) -> int | None:
        """Bytes in all; None where a stage's claim is not known."""
        claims = [share.claim for share in self.shares]
        known = [claim for claim in claims if claim is not None]
        if len(known) != len(claims):
            return None
        return sum(known) + sum(share.graphs for share in self.shares) + self.reserves

    @property
    def verdict(self) -> Verdict:
        """Whether it fits; known minimums decide where they alone are too much."""
        if any(share.too_small for share in self.shares):
            return "does not fit"
        if self.capacity is None:
            return "unknown"
        if self.needed is not None:
            return "fits" if self.needed <= self.capacity else "does not fit"
        least = sum((share.claim or share.weights or 0) + share.graphs for share in self.shares) + self.reserves
        return "does not fit" if least > self.capacity else "unknown"


def estimate_memory(resolved: ResolvedPipeline, capacity: int | None = None) -> list[DeviceMemory]:
    """Return each device that a deployment uses.

    Args:
        resolved: The deployment. A stage without `devices` is on the first devices of the launcher.
        capacity: Bytes of each device's memory, if known.

    Raises:
        ConfigError: A file of the checkpoint is damaged.
    """
    shares: dict[str, list[Share]] = {}
    for stage in resolved.stages:
        weights = stage_weights(stage, resolved)
        for share in _shares(stage, weights, capacity):
            shares.setdefault(share.device, []).append(share)
    return [DeviceMemory(device, tuple(shares[device]), capacity) for device in sorted(shares, key=_order)]


def _order(device: str) -> tuple[int, str]:
    return (int(device), "") if device.isdecimal() else (1 << 31, device)


def _shares(stage: ResolvedStage, weights: Weights, capacity: int | None) -> Iterable[Share]:
    for replica, devices in enumerate(replica_device_ids(stage)):
        name = stage.name if stage.num_replicas == 1 else f"{stage.name}, replica {replica}"
        for device in devices:
            yield _share(stage, name, device, weights, capacity)


def replica_device_ids(stage: ResolvedStage) -> list[list[str]]:
    """Return the ids of each replica's devices; those of a stage without `devices` count from 0, and a CPU is `cpu`."""
    if stage.platform == "cpu":
        return [["cpu"] * max(1, world_size(stage.engine_args))] * stage.num_replicas
    ranks = max(1, world_size(stage.engine_args))
    inherited = [str(rank) for rank in range(ranks)]
    return [inherited if devices is None else parse_devices(devices) for devices in replica_devices(stage)]


def _share(stage: ResolvedStage, name: str, device: str, weights: Weights, capacity: int | None) -> Share:
    split = int(stage.engine_args.get("tensor_parallel_size") or 1) * int(stage.engine_args.get("pipeline_parallel_size") or 1)
    own = None if weights.total is None else -(-weights.total // split)
    kv_cache, claim, basis = _claim(stage, own, capacity)
    captures = stage.platform != "cpu" and stage.engine_args.get("enforce_eager") is not True
    return Share(device, name, own, weights.what, kv_cache, claim, basis, GRAPH_RESERVE if captures else 0)


def _claim(stage: ResolvedStage, weights: int | None, capacity: int | None) -> tuple[int | None, int | None, str]:
    """Return the KV cache, the claim, and what they follow from."""
    is_ar = stage.topology.execution_type is ExecutionType.LLM_AR
    given = stage.engine_args.get("kv_cache_memory_bytes")
    if given is None and stage.platform == "cpu":
        given = CPU_KV_CACHE_BYTES if is_ar else 0
    if given:
        return int(given), None if weights is None else weights + int(given), "kv_cache_memory_bytes"
    share = stage.engine_args.get("gpu_memory_utilization", ENGINE_UTILIZATION if is_ar else None)
    if share is None or stage.platform == "cpu":
        return 0, weights, "weights"
    basis = f"gpu_memory_utilization {share}"
    if capacity is None:
        return None, None, basis
    claim = round(share * capacity)
    return None if weights is None else max(0, claim - weights), claim, basis
