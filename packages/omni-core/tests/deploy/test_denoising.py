"""Fields of a stage that denoises: which of them fit together, and how many devices they make."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omni_core.deploy.denoising import denoising_ranks
from omni_core.deploy.devices import world_size
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ("allgather_degree: 2, ring_degree: 2", "allgather_degree excludes ring_degree", "set one"),
        ("ulysses_degree: 2, ring_degree: 2, sequence_parallel_size: 2", "is 2, but its degrees make 4", "set 4"),
        ("use_hsdp: true, hsdp_shard_size: 2, tensor_parallel_size: 2", "use_hsdp excludes tensor_parallel_size", "set one"),
        ("use_hsdp: true", "and there is none", "set hsdp_shard_size"),
        ("use_hsdp: true, hsdp_shard_size: 0", "hsdp_shard_size is 0", "-1"),
        ("diffusers_load_kwargs: {a: 1}", "no effect without diffusion_load_format: diffusers", "set it"),
        ("quantization: fp8, diffusion_quantization_config: fp8", "exclude each other", "set one"),
        ("diffusion_kv_cache_skip_steps: 0-", "diffusion_kv_cache_skip_steps is '0-'", "0-9,20"),
        ("host_weight_runtime_mode: required", "needs host_weight_runtime_root", "name the folder"),
        ("diffusion_offload_config: {mode: all}", "diffusion_offload_config.mode is 'all'", "layer, module"),
        ("diffusion_offload_config: {modes: 1}", "diffusion_offload_config has no modes", "its keys are"),
        ("diffusion_offload_config: {layer_options: {x: 1}}", "layer_options has no x", "weight_transfer"),
        (
            "diffusion_offload_config: {layer_options: {resident_layers: 1, weight_transfer: allgather}}",
            "needs weight_transfer rank-local",
            "leave out",
        ),
        ("ulysses_mode: advanced_uaa, ulysses_a2a_permute: true", "needs ulysses_mode strict", "leave out"),
        ("ulysses_degree: 2, vae_parallel_mode: spatial_shard_height", "needs vae_patch_parallel_size 2", "tile"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(resolve: Resolve, fields: str, message: str, hint: str) -> None:
    """SF-05."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("picture", f"stages: [{{stage_id: 1, {fields}}}]")
    assert hint in caught.value.hint
    assert caught.value.message.startswith("stage 1 (dit)")
    assert caught.value.where.startswith("my.yaml:1:")


def test_all_faults_are_in_one_message(resolve: Resolve) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("picture", "stages: [{stage_id: 1, use_hsdp: true, diffusers_load_kwargs: {a: 1}}]")
    assert len(caught.value.message.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 2, "cfg_parallel_size": 2}, 4),
        ({"ulysses_degree": 2, "ring_degree": 3}, 6),
        ({"allgather_degree": 4}, 4),
        ({"sequence_parallel_size": 2, "pipeline_parallel_size": 2}, 4),
        ({"use_hsdp": True, "hsdp_shard_size": 4, "hsdp_replicate_size": 2}, 8),
        ({"use_hsdp": True, "ulysses_degree": 2}, 2),
    ],
)
def test_ranks_are_the_product_of_all_parallel_sizes(arguments: dict[str, object], ranks: int) -> None:
    """DV-01."""
    assert denoising_ranks(arguments) == world_size(arguments) == ranks


def test_devices_of_a_denoising_stage_are_counted_too(resolve: Resolve) -> None:
    """DV-02, E20."""
    text = "stages: [{stage_id: 1, devices: '0,1,2', ulysses_degree: 2, cfg_parallel_size: 2}]"

    with pytest.raises(ConfigError, match=r"runs 4 rank\(s\) \(.* x sequence_parallel_size 2 x cfg_parallel_size 2\)"):
        resolve("picture", text)
    assert resolve("picture", text.replace("0,1,2", "0,1,2,3")).stages[1].devices == "0,1,2,3"


@pytest.mark.parametrize("name", ["model", "seed", "kv_cache_dtype", "model_arch"])
def test_shared_names_are_not_the_denoising_stages(resolve: Resolve, name: str) -> None:
    """SF-04."""
    with pytest.raises(ConfigError, match=name):
        resolve("picture", f"stages: [{{stage_id: 1, {name}: x}}]")
