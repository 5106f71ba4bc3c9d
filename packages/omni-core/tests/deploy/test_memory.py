"""The memory table: the arithmetic of DV-07."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy import memory
from omni_core.deploy.memory import GIB, DeviceMemory, estimate_memory
from omni_core.deploy.weights import Weights
from omni_core.testing.pipelines import fake_pipeline

WEIGHTS = 8 * GIB


@pytest.fixture(autouse=True)
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "stage_weights", lambda stage, resolved: Weights(WEIGHTS, "whole checkpoint"))


def estimate(
    talker: Mapping[str, Any],
    vocoder: Mapping[str, Any],
    *,
    capacity: int | None = 80,
    platform: str = "cuda",
    replicas: int = 1,
) -> dict[str, DeviceMemory]:
    """Return the devices of the fake pipeline; `devices` among the arguments is the stage's placement."""
    resolved = fake_pipeline(replicas={0: replicas})
    stages = []
    for stage, given in zip(resolved.stages, (talker, vocoder), strict=True):
        arguments = {name: value for name, value in given.items() if name != "devices"}
        stages.append(replace(stage, platform=platform, devices=given.get("devices"), engine_args=arguments))
    found = estimate_memory(replace(resolved, stages=tuple(stages)), None if capacity is None else capacity * GIB)
    return {device.device: device for device in found}


def test_claims_graphs_other_programs_and_margin_add_up() -> None:
    (device,) = estimate(
        {"devices": "0", "gpu_memory_utilization": 0.5},
        {"devices": "0", "kv_cache_memory_bytes": 4 * GIB, "enforce_eager": True},
    ).values()

    talker, vocoder = device.shares
    assert (talker.claim, talker.kv_cache, talker.graphs) == (40 * GIB, 32 * GIB, 2 * GIB)
    assert (vocoder.claim, vocoder.kv_cache, vocoder.graphs) == (12 * GIB, 4 * GIB, 0)
    assert device.needed == (40 + 2 + 12 + 1 + 1) * GIB
    assert device.verdict == "fits"


@pytest.mark.parametrize(
    ("capacity", "verdict"), [(26, "fits"), (25, "does not fit"), (None, "unknown")], ids=["exact", "too small", "not given"]
)
def test_verdict_compares_with_the_capacity(capacity: int | None, verdict: str) -> None:
    bytes_of_each = {"devices": "0", "kv_cache_memory_bytes": 2 * GIB}

    (device,) = estimate(bytes_of_each, bytes_of_each, capacity=capacity).values()

    assert device.needed == 26 * GIB
    assert device.verdict == verdict


def test_weights_larger_than_the_claim_do_not_fit() -> None:
    found = estimate({"devices": "0", "gpu_memory_utilization": 0.05}, {"devices": "1"})

    assert [device.verdict for device in found.values()] == ["does not fit", "fits"]


def test_tensor_parallel_splits_weights_and_replicas_have_their_own_devices() -> None:
    talker = {"devices": "0,1,2,3", "tensor_parallel_size": 2, "kv_cache_memory_bytes": GIB}

    found = estimate(talker, {"devices": "3"}, replicas=2)

    assert list(found) == ["0", "1", "2", "3"]
    assert [share.weights for share in found["0"].shares] == [WEIGHTS // 2]
    assert [share.stage for share in found["2"].shares] == ["0 (talker), replica 1"]
    assert [share.stage for share in found["3"].shares] == ["0 (talker), replica 1", "1 (vocoder)"]


def test_stage_without_devices_is_on_the_first_ones() -> None:
    assert list(estimate({"tensor_parallel_size": 2}, {})) == ["0", "1"]


def test_autoregressive_stage_takes_the_engines_share_where_nothing_is_set() -> None:
    (device,) = estimate({}, {}).values()

    talker, vocoder = device.shares
    assert talker.claim == round(0.92 * 80 * GIB)
    assert vocoder.claim == WEIGHTS


def test_unknown_weights_are_unknown_unless_the_rest_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "stage_weights", lambda stage, resolved: Weights(None, "no safetensors files"))

    assert estimate({"kv_cache_memory_bytes": GIB}, {})["0"].verdict == "unknown"
    assert estimate({"gpu_memory_utilization": 0.99}, {})["0"].verdict == "does not fit"


def test_cpu_is_one_device_without_graphs() -> None:
    (device,) = estimate({"tensor_parallel_size": 2}, {}, platform="cpu").values()

    assert device.device == "cpu"
    assert [share.graphs for share in device.shares] == [0, 0, 0]
    assert [share.kv_cache for share in device.shares] == [GIB // 2, GIB // 2, 0]


def test_numbers_of_the_engine_are_those_of_the_engine() -> None:
    source = Path(memory.__file__).parents[1] / "engine" / "ar" / "engine_args.py"
    constants = {
        node.targets[0].id: node.value
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }

    assert eval(ast.unparse(constants["CPU_KV_CACHE_BYTES"])) == memory.CPU_KV_CACHE_BYTES


@pytest.mark.engine
def test_share_of_the_engine_is_the_engines() -> None:
    from omni_core.engine.vllm_bridge import AsyncEngineArgs

    assert AsyncEngineArgs.gpu_memory_utilization == memory.ENGINE_UTILIZATION
