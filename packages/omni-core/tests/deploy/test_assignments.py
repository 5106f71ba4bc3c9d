"""`--set PATH=VALUE`: what it reads, where it lies among the layers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline, Source

Resolve = Callable[..., ResolvedPipeline]


def test_value_of_a_stage_is_typed_as_in_a_file(resolve: Resolve) -> None:
    resolved = resolve("two", set=["stages.1.gpu_memory_utilization=0.5", "stages.1.enforce_eager=true", "stages.0.devices=0"])

    assert resolved.stages[1].engine_args == {"gpu_memory_utilization": 0.5, "enforce_eager": True}
    assert resolved.stages[0].devices == "0"
    source = resolved.stages[1].sources["gpu_memory_utilization"]
    assert (source, source.value) == (Source("stage override", "--set stages.1.gpu_memory_utilization"), 0.5)


def test_set_beats_flags_and_files_and_loses_against_stage_overrides(resolve: Resolve) -> None:
    text = "stages: [{stage_id: 0, max_num_seqs: 1}]"
    overrides = {"0": {"max_num_seqs": 4}}

    with_overrides = resolve("two", text, set=["stages.0.max_num_seqs=3"], overrides=overrides, max_num_seqs=2).stages[0]
    without = resolve("two", text, set=["stages.0.max_num_seqs=3"], max_num_seqs=2).stages[0]

    assert with_overrides.engine_args == {"max_num_seqs": 4}
    assert [loser.value for loser in with_overrides.losers["max_num_seqs"]] == [3, 2, 1]
    assert without.engine_args == {"max_num_seqs": 3}


def test_set_of_a_top_level_field_is_a_flag_below_the_flag_of_that_name(resolve: Resolve) -> None:
    text = "dtype: float32\nasync_chunk: true\nstages: [{stage_id: 0, dtype: float32}]"

    resolved = resolve("two", text, set=["dtype=bfloat16", "async_chunk=false"])

    assert [stage.engine_args["dtype"] for stage in resolved.stages] == ["bfloat16", "bfloat16"]
    assert resolved.async_chunk is False
    assert resolved.sources["async_chunk"] == Source("flag", "--set async_chunk")
    assert resolve("two", text, set=["dtype=bfloat16"], dtype="float16").stages[0].engine_args == {"dtype": "float16"}


def test_later_assignments_lie_on_top_of_earlier_ones(resolve: Resolve) -> None:
    given = [
        "stages.0.compilation_config={mode: 3, level: 1}",
        "stages.0.compilation_config.level=2",
        "stages.0.max_num_seqs=1",
        "stages.0.max_num_seqs=2",
    ]

    args = resolve("two", set=given).stages[0].engine_args

    assert args == {"compilation_config": {"mode": 3, "level": 2}, "max_num_seqs": 2}


def test_connectors_and_sampling_can_be_set(resolve: Resolve) -> None:
    text = (
        "connectors: {shm: {name: SharedMemoryConnector, extra: {frames: 25}}}\n"
        "stages: [{stage_id: 0, output_connectors: {to_stage_1: shm}, default_sampling_params: {stop_token_ids: [1]}}]"
    )
    given = ["connectors.shm.extra.frames=5", "stages.0.default_sampling_params.stop_token_ids=!append [2]"]

    stage = resolve("two", text, set=given).stages[0]

    assert stage.outputs[0].stream == {"frames": 5}
    assert stage.sampling["stop_token_ids"] == [1, 2, 2150]


def test_pipeline_can_be_set(resolve: Resolve) -> None:
    """RG-04."""
    assert resolve("two", "pipeline: three", set=["pipeline=one"]).config.model_type == "one"
    with pytest.raises(ConfigError, match="there is no pipeline 'won'") as caught:
        resolve("two", set=["pipeline=won"])
    assert caught.value.where == "--set pipeline"


def test_unset_takes_away_what_is_below(resolve: Resolve) -> None:
    text = "stages: [{stage_id: 0, max_num_seqs: 1, env: {A: x, B: y}}]"

    stage = resolve("two", text, set=["stages.0.max_num_seqs=!unset", "stages.0.env.A=!unset"]).stages[0]

    assert stage.engine_args == {}
    assert stage.env == {"B": "y"}


def test_mapping_of_values_works_in_python(resolve: Resolve) -> None:
    assert resolve("two", set={"stages.0.max_num_seqs": 7}).stages[0].engine_args == {"max_num_seqs": 7}


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ("max_num_seqs", "--set", "has no `=`"),
        ("a..b=1", "--set", "is no path"),
        ("=1", "--set", "is no path"),
        ("stages=1", "--set stages", "followed by the id of a stage"),
        ("stages.talker.dtype=x", "--set stages.talker.dtype", "followed by the id of a stage"),
        ("stages.0=1", "--set stages.0", "is a mapping of fields"),
        ("stages.9.max_num_seqs=1", "--set stages.9.max_num_seqs", "has no stage 9"),
        ("stages.0.stage_id=1", "--set stages.0.stage_id", "another stage_id"),
        ("stages.0.max_num_seq=1", "--set stages.0.max_num_seq", "is not one of the fields of a stage"),
        ("stages.0.max_num_seqs=many", "--set stages.0.max_num_seqs", "valid integer"),
        ("stages.0.max_num_seqs=[1", "--set stages.0.max_num_seqs", "not valid YAML"),
        ("stages.0.final_output=true", "--set stages.0.final_output", "is topology"),
        ("max_num_seqs=1", "--set max_num_seqs", "is a field of a stage"),
        ("asinc_chunk=1", "--set asinc_chunk", "is not one of the top-level fields"),
        ("async_chunk=yes", "--set async_chunk", "valid boolean"),
        ("model_runner=v3", "--set model_runner", "'v1' or 'v2'"),
        ("platforms.cpu.dtype=x", "--set platforms.cpu.dtype", "cannot be set here"),
        ("base_config=x", "--set base_config", "cannot be set here"),
        ("connectors.shm.nam=x", "--set connectors.shm.nam", "is not one of the fields of connectors.shm"),
        ("stages.0.max_num_seqs=!append [1]", "--set stages.0.max_num_seqs", "valid integer"),
    ],
)
def test_fault_is_reported_at_the_assignment(resolve: Resolve, given: str, where: str, message: str) -> None:
    """SP-04, SO-03: as in a deploy file."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("two", set=[given])
    assert caught.value.where == where
