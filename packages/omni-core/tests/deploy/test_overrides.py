from collections.abc import Callable
from typing import Any

import pytest

from omni_core.deploy.overrides import parse_stage_overrides
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('{"0": ', "is not JSON: .* at character 7"),
        ("{'0': {}}", "is not JSON"),
        ("[]", "is no object"),
        ("3", "is no object"),
        ('{"x": {}}', "'x' is no stage id"),
        ('{"-1": {}}', "'-1' is no stage id"),
        ('{"٣": {}}', "is no stage id"),
        ('{"0": 5}', "the fields of stage 0 are 5"),
        ('{"0": {"a": 1, "a": 2}}', "the key 'a' is there twice"),
        ({True: {}}, "True is no stage id"),
    ],
)
def test_malformed_overrides_are_refused(value: Any, message: str) -> None:
    """SO-01, E12: the message has the text and the place in it."""
    with pytest.raises(ConfigError, match=message) as caught:
        parse_stage_overrides(value)
    assert caught.value.where == "--stage-overrides"


def test_json_and_mappings_mean_the_same_and_null_is_no_override() -> None:
    """SO-02, SO-04."""
    expected = {0: {"max_num_seqs": 8}}

    assert parse_stage_overrides('{"0": {"max_num_seqs": 8, "dtype": null}}') == expected
    assert parse_stage_overrides({0: {"max_num_seqs": 8}}) == expected
    assert parse_stage_overrides({"0": {"max_num_seqs": 8}}) == expected
    assert parse_stage_overrides(None) == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"9": {"max_num_seqs": 8}}, "has no stage 9"),
        ({"0": {"max_num_seq": 8}}, "max_num_seq is not one of"),
        ({"0": {"final_output": True}}, "final_output is topology"),
        ({"0": {"max_num_seqs": "8"}}, r"stages\.0\.max_num_seqs"),
        ({"0": {"stage_id": 1}}, "cannot be given another stage_id"),
        ({"0": {"ulysses_degree": 2}}, "has no field ulysses_degree"),
    ],
)
def test_override_that_cannot_be_used_is_refused(resolve: Resolve, overrides: Any, message: str) -> None:
    """SO-03, SP-04."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("two", overrides=overrides)
    assert caught.value.where.startswith("--stage-overrides")


def test_flat_keyword_is_an_override(resolve: Resolve) -> None:
    """SO-02."""
    resolved = resolve("two", stage_1_max_num_seqs=3, max_num_seqs=5)

    assert [stage.engine_args["max_num_seqs"] for stage in resolved.stages] == [5, 3]


def test_flags_go_to_every_stage_that_owns_them(resolve: Resolve) -> None:
    """PR-05."""
    flags = {"attention_backend": "TORCH_SDPA", "cache_backend": "tea_cache", "dtype": "float32"}

    resolved = resolve("picture", "async_chunk: false", **flags)

    assert resolved.stages[0].engine_args == {"attention_backend": "TORCH_SDPA", "dtype": "float32"}
    assert resolved.stages[1].engine_args == {
        "cache_backend": "tea_cache",
        "dtype": "float32",
        "distributed_executor_backend": "uni",
    }


def test_flag_that_no_stage_owns_is_refused(resolve: Resolve) -> None:
    """PR-05, E11."""
    with pytest.raises(ConfigError, match="no stage of pipeline 'two' takes --cache-backend, --ulysses-degree"):
        resolve("two", cache_backend="tea_cache", ulysses_degree=2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_num_seq": 1}, "there is no flag --max-num-seq"),
        ({"devices": "0"}, "--devices differs from stage to stage"),
        ({"max_num_seqs": "8"}, "max_num_seqs: input should be a valid integer"),
        ({"async_chunk": "no"}, "async_chunk: input should be a valid boolean"),
    ],
)
def test_wrong_flag_is_refused(resolve: Resolve, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("two", **flags)
    assert caught.value.where.startswith("--")


def test_lora_of_a_pipeline_of_several_stages_is_set_for_one(resolve: Resolve) -> None:
    """LR-02, LR-03, E27."""
    with pytest.raises(ConfigError, match="--enable-lora cannot be set for all stages") as caught:
        resolve("two", enable_lora=True)
    assert '--stage-overrides \'{"0": {"enable_lora": true}}\'' in caught.value.hint

    assert resolve("one", enable_lora=True).stages[0].engine_args == {"enable_lora": True}
    assert resolve("two", overrides={"0": {"enable_lora": True}}).stages[0].engine_args == {"enable_lora": True}


def test_lora_cache_of_all_stages_is_the_denoising_ones(resolve: Resolve) -> None:
    """LR-06."""
    stages = resolve("picture", max_cpu_loras=3).stages

    assert [stage.engine_args for stage in stages] == [{}, {"max_cpu_loras": 3, "distributed_executor_backend": "uni"}]
