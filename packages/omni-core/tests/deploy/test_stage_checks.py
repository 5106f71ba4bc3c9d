from typing import Any

import pytest

from omni_core.deploy.numa import START_METHOD, NumaHost
from omni_core.deploy.provenance import Provenance
from omni_core.deploy.stage_checks import check_stage
from omni_core.deploy.stages import StageValues
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import Source

TALKER = StagePipelineConfig(stage_id=0, model_stage="talker")
DENOISER = StagePipelineConfig(stage_id=1, model_stage="dit", execution_type=ExecutionType.DIFFUSION)
HOST = NumaHost("linux", "/usr/bin/numactl", frozenset(range(8)), frozenset({0}))


def stage_values(devices: str | None = None, replicas: int = 1, **arguments: Any) -> StageValues:
    sources = {name: Source("overlay", f"my.yaml:{line}:1", value) for line, (name, value) in enumerate(arguments.items(), 1)}
    return StageValues(dict(arguments), {}, devices, replicas, {}, Provenance(sources, dict.fromkeys(sources, ())))


def check(stage: StagePipelineConfig, values: StageValues, **options: Any) -> tuple[str, ...]:
    return check_stage(stage, values, **{"platform": "cuda", "host": HOST, "environ": {}, "ray_installed": False, **options})


def test_stage_without_special_fields_is_left_as_it_is() -> None:
    values = stage_values(max_num_seqs=4)

    assert check(TALKER, values) == ()
    assert values == stage_values(max_num_seqs=4)


def test_values_are_normalised_with_their_sources() -> None:
    """BK-04, WT-01, NU-02, LR-01."""
    values = stage_values(
        moe_backend="Batched-Triton",
        weight_transfer_config={},
        numa_bind=True,
        numa_bind_cpus=["0-3"],
        max_loras=2,
    )

    warnings = check(TALKER, values)

    assert values.engine_args["moe_backend"] == "batched_triton"
    assert values.engine_args["weight_transfer_config"] == {"backend": "nccl"}
    assert values.env == {START_METHOD: "spawn"}
    assert values.provenance.sources["moe_backend"].value == "batched_triton"
    assert values.provenance.sources["moe_backend"].place == "my.yaml:1:1"
    assert warnings == ("my.yaml:5:1: stage 0 (talker): max_loras has no effect without enable_lora: true",)


@pytest.mark.parametrize(
    ("devices", "replicas", "expected"),
    [(None, 1, "uni"), ("3", 1, "uni"), ("0,1", 1, "mp"), ("0,1", 2, "uni"), ("0,1,2,3", 2, "mp"), ("0", 3, "uni")],
)
def test_executor_of_a_denoising_stage_follows_its_devices(devices: str | None, replicas: int, expected: str) -> None:
    """EX-02."""
    values = stage_values(devices, replicas)

    check(DENOISER, values)

    assert values.engine_args == {"distributed_executor_backend": expected}
    assert values.provenance.sources["distributed_executor_backend"] == Source("default")


def test_environment_of_the_stage_beats_that_of_the_server() -> None:
    """BK-11."""
    values = stage_values()
    values.env["DIFFUSION_ATTENTION_BACKEND"] = "SAGE_ATTN"

    check(DENOISER, values, environ={"DIFFUSION_ATTENTION_BACKEND": "TORCH_SDPA"})

    assert values.engine_args["diffusion_attention_config"] == {"default": {"backend": "SAGE_ATTN"}}


@pytest.mark.parametrize(
    ("stage", "arguments", "message"),
    [
        (TALKER, {"linear_backend": "x"}, "there is no linear_backend 'x'"),
        (DENOISER, {"distributed_executor_backend": "external_launcher"}, "external_launcher"),
        (TALKER, {"distributed_executor_backend": "ray"}, "Ray, which is not installed"),
        (DENOISER, {"enable_lora": True}, "has no enable_lora"),
        (TALKER, {"weight_transfer_config": {"a": 1}}, "has no key 'a'"),
        (TALKER, {"numa_bind_nodes": [0]}, "has no effect without numa_bind"),
    ],
)
def test_every_check_runs(stage: StagePipelineConfig, arguments: dict[str, Any], message: str) -> None:
    """E26, E27, E28, E33."""
    with pytest.raises(ConfigError, match=message):
        check(stage, stage_values(**arguments))


def test_this_machine_is_taken_by_default() -> None:
    assert check_stage(TALKER, stage_values(), platform="cpu") == ()
