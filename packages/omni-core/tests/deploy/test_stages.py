from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline, RestartPolicy, Source

Resolve = Callable[..., ResolvedPipeline]


def test_engine_arguments_have_only_what_is_set(resolve: Resolve) -> None:
    text = (
        "stages: [{stage_id: 0, max_num_seqs: 4, enforce_eager: null, devices: '0', env: {A: b}, num_replicas: 1, "
        "model_runner: v1, async_chunk: true, subtalker_sampling_params: {top_k: 1}, silence_ban_frames: 3}]"
    )

    stage = resolve("two", text).stages[0]

    assert stage.engine_args == {"max_num_seqs": 4}
    assert (stage.devices, stage.num_replicas, stage.env) == ("0", 1, {"A": "b"})


def test_pipeline_wide_field_reaches_every_stage_that_has_no_own_value(resolve: Resolve) -> None:
    """DY-05."""
    text = "dtype: bfloat16\ntrust_remote_code: true\nstages: [{stage_id: 1, dtype: float32}]"

    resolved = resolve("two", text)

    assert resolved.stages[0].engine_args == {"dtype": "bfloat16", "trust_remote_code": True}
    assert resolved.stages[1].engine_args == {"dtype": "float32", "trust_remote_code": True}


def test_null_of_a_stage_takes_the_pipeline_wide_value_away(resolve: Resolve) -> None:
    """DY-04, DY-05."""
    assert resolve("two", "dtype: bfloat16\nstages: [{stage_id: 1, dtype: null}]").stages[1].engine_args == {}


def test_sampling_is_the_baseline_with_constraints(resolve: Resolve) -> None:
    """SM-01."""
    text = (
        "stages: [{stage_id: 0, default_sampling_params: {top_k: 50, stop_token_ids: [5, 2150], detokenize: true, seed: null}}]"
    )

    stage = resolve("two", text).stages[0]

    assert stage.sampling == {"top_k": 50, "stop_token_ids": [5, 2150], "detokenize": False}
    assert stage.sources["sampling.top_k"] == Source("base", "my.yaml:1:57")
    assert stage.sources["sampling.detokenize"].layer == "pipeline"


def test_predictors_sampling_goes_into_extra_args(resolve: Resolve) -> None:
    text = (
        "stages: [{stage_id: 0, silence_ban_frames: 2, subtalker_sampling_params: {do_sample: false, top_k: 50}, "
        "default_sampling_params: {extra_args: {mtp: {top_p: 0.5}, mine: 1}}}]"
    )

    stage = resolve("two", text, overrides={"0": {"subtalker_sampling_params": {"top_k": 7}}}).stages[0]

    assert stage.sampling["extra_args"] == {
        "mtp": {"do_sample": False, "top_k": 7, "top_p": 0.5},
        "mine": 1,
        "silence_ban_frames": 2,
    }
    assert stage.sources["sampling.extra_args.mtp.top_k"].layer == "stage override"
    assert stage.sources["sampling.extra_args.mtp.do_sample"].layer == "base"


@pytest.mark.parametrize(
    ("params", "place", "message"),
    [
        ("default_sampling_params: {temprature: 1}", "1:62", "no sampling parameter temprature"),
        ("default_sampling_params: {top_p: 2}", "1:57", "top_p must be"),
        ("subtalker_sampling_params: {top_k: x}", "1:59", r"extra_args\.mtp\.top_k must be"),
    ],
)
def test_wrong_sampling_parameter_is_refused_at_its_place(resolve: Resolve, params: str, place: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("two", f"stages: [{{stage_id: 0, {params}}}]")
    assert caught.value.where == f"my.yaml:{place}"


def test_token_budget_below_the_number_of_requests_is_refused(resolve: Resolve) -> None:
    """SF-05: vLLM would refuse it after loading."""
    text = "stages: [{stage_id: 0, max_num_seqs: 64, max_num_batched_tokens: 8}]"

    with pytest.raises(ConfigError, match=r"max_num_batched_tokens 8 below max_num_seqs 64 \(my\.yaml:1:38\)") as caught:
        resolve("two", text)
    assert caught.value.where == "my.yaml:1:66"


def test_pooling_parameters_are_for_stages_that_pool(resolve: Resolve) -> None:
    fields = "default_pooling_params: {normalize: true}"

    with pytest.raises(ConfigError, match="does not pool"):
        resolve("two", f"stages: [{{stage_id: 0, {fields}}}]")
    stage = resolve("one", f"stages: [{{stage_id: 0, runner: pooling, {fields}}}]").stages[0]
    assert stage.sampling == {"normalize": True}


def test_sources_reach_into_mappings(resolve: Resolve) -> None:
    text = "stages: [{stage_id: 0, compilation_config: {mode: 3}}]"

    stage = resolve("two", text, overrides={"0": {"compilation_config": {"cudagraph_mode": "NONE"}}}).stages[0]

    assert stage.engine_args["compilation_config"] == {"mode": 3, "cudagraph_mode": "NONE"}
    assert stage.sources["compilation_config.mode"].layer == "base"
    assert stage.sources["compilation_config.cudagraph_mode"] == Source(
        "stage override", "--stage-overrides 0.compilation_config"
    )


def test_pipeline_wide_fields_of_a_stage_have_types_too(resolve: Resolve) -> None:
    """DY-10."""
    with pytest.raises(ConfigError, match=r"stages\.0\.data_parallel_size: input should be a valid integer"):
        resolve("two", "stages: [{stage_id: 0, data_parallel_size: many}]")


def test_stage_without_multimodal_input_skips_its_measurement(deployments: Any) -> None:
    """SP-03."""
    deployments.hooks["omni_pipelines"] = [
        replace(config, stages=(replace(config.stages[0], requires_multimodal_data=True), *config.stages[1:]))
        for config in deployments.hooks["omni_pipelines"]
        if config.model_type == "three"
    ]

    first, second, last = deployments.resolve("three").stages

    assert (first.engine_args, second.engine_args, last.engine_args) == ({}, {"skip_mm_profiling": True}, {})
    assert second.sources["skip_mm_profiling"] == Source("pipeline", "stage 1 (talker)")
    assert deployments.resolve("three", "stages: [{stage_id: 1, skip_mm_profiling: false}]").stages[1].engine_args == {
        "skip_mm_profiling": False
    }


@pytest.mark.parametrize("name", ["A=B", "''", '"a\\0b"'])
def test_variable_that_no_environment_can_hold_is_refused(resolve: Resolve, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a variable of an environment"):
        resolve("two", f"stages: [{{stage_id: 0, env: {{{name}: x}}}}]")


def test_null_takes_a_variable_away(deployments: Any) -> None:
    """DY-04."""
    deployments.write("base.yaml", "stages: [{stage_id: 0, env: {A: x, B: y}}]")

    assert deployments.resolve("two", "base_config: base.yaml\nstages: [{stage_id: 0, env: {A: null}}]").stages[0].env == {
        "B": "y"
    }


def test_restart_policy_is_a_stages_own_or_that_of_all(resolve: Resolve) -> None:
    own = "stages: [{stage_id: 0, restart_backoff_s: 0.5, restart_max: 9}, {stage_id: 1, restart: never}]"
    text = f"restart: on-failure\nrestart_max: 2\n{own}"

    stages = resolve("two", text).stages

    assert stages[0].restart == RestartPolicy("on-failure", 0.5, 9)
    assert stages[1].restart == RestartPolicy("never", 1.0, 2)
    assert stages[0].sources["restart"].layer == "base"
    assert not stages[0].engine_args


@pytest.mark.parametrize("text", ["restart: always", "restart_backoff_s: 0", "restart_max: 0"])
def test_restart_policy_that_makes_no_sense_is_refused(resolve: Resolve, text: str) -> None:
    with pytest.raises(ConfigError, match="restart"):
        resolve("two", text)


def test_restart_policy_can_be_a_flag(resolve: Resolve) -> None:
    """PR-01."""
    assert resolve("two", "restart: never", restart="on-failure").stages[1].restart.when == "on-failure"


def test_restart_policy_changes_the_hash_and_the_default_does_not(resolve: Resolve) -> None:
    plain = resolve("two", "{}").config_hash

    assert resolve("two", "restart: never").config_hash == plain
    assert resolve("two", "restart: on-failure").config_hash != plain
