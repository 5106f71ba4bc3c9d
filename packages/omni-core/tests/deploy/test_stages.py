from collections.abc import Callable

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline, Source

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
