"""What is remembered of every value: for random layers the winner is the resolved value, and all others are kept in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_core.stage import ResolvedPipeline, Source

Resolve = Callable[..., ResolvedPipeline]

SEQS = st.integers(1, 64)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": SEQS | st.none(),
        "gpu_memory_utilization": st.sampled_from([0.25, 0.5, None]),
        "enforce_eager": st.booleans(),
        "devices": st.sampled_from(["0", 1, [2]]),
        "env": st.dictionaries(st.sampled_from("AB"), st.integers(0, 9) | st.just("x") | st.none(), max_size=2) | st.none(),
        "compilation_config": st.dictionaries(st.sampled_from(["mode", "x"]), st.integers(0, 3) | st.none()),
        "default_sampling_params": st.fixed_dictionaries(
            {}, optional={"top_k": SEQS, "extra_args": st.dictionaries(st.sampled_from("ab"), SEQS)}
        ),
        "model_runner": st.sampled_from(["v1", "v2", None]),
        "async_chunk": st.just(True),
    },
)
STAGES = st.fixed_dictionaries({}, optional={0: FIELDS, 1: FIELDS})
TOP = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["float32", "bfloat16", None]),
        "model_runner": st.sampled_from(["v1", "v2"]),
        "active_stream_window": SEQS,
        "async_chunk": st.booleans(),
    },
)


def document(top: Mapping[str, Any], stages: Mapping[int, Any]) -> dict[str, Any]:
    return {**top, "stages": [{"stage_id": stage_id, **fields} for stage_id, fields in stages.items()]}


def resolved_values(resolved: ResolvedPipeline) -> dict[str, Any]:
    """Return every resolved value by the key that it has in `sources`, with the stage's id in front."""

    def spread(name: str, value: Any) -> dict[str, Any]:
        inside = value.items() if isinstance(value, Mapping) else ()
        return {name: value} | {key: leaf for k, item in inside for key, leaf in spread(f"{name}.{k}", item).items()}

    found: dict[str, Any] = {"async_chunk": resolved.async_chunk}
    for name, value in resolved.values.items():
        found |= spread(name, value)
    for stage in resolved.stages:
        values: dict[str, Any] = dict(stage.engine_args)
        values |= {f"sampling.{name}": value for name, value in stage.sampling.items()}
        values |= {"model_runner": stage.model_runner, "async_chunk": stage.async_chunk}
        values |= {"devices": stage.devices} if stage.devices is not None else {}
        values |= {"env": stage.env} if stage.env else {}
        for name, value in values.items():
            found |= spread(f"{stage.stage_id}:{name}", value)
    return found


def recorded(resolved: ResolvedPipeline) -> dict[str, Source]:
    found = {name: source for name, source in resolved.sources.items() if not name.startswith("edge.")}
    for stage in resolved.stages:
        found |= {f"{stage.stage_id}:{name}": source for name, source in stage.sources.items()}
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    base=st.tuples(TOP, STAGES),
    overlay=st.tuples(TOP, STAGES),
    platform=st.tuples(TOP, STAGES),
    flags=st.fixed_dictionaries({}, optional={"max_num_seqs": SEQS, "dtype": st.just("float16"), "async_chunk": st.booleans()}),
    overrides=STAGES,
)
def test_winner_is_the_resolved_value_for_random_layers(
    deployments: Any, base: Any, overlay: Any, platform: Any, flags: dict[str, Any], overrides: dict[int, Any]
) -> None:
    deployments.write("base.yaml", yaml.safe_dump(document(*base)))
    text = yaml.safe_dump({"base_config": "base.yaml", **document(*overlay), "platforms": {"cpu": document(*platform)}})

    resolved = deployments.resolve("two", text, overrides=overrides, **flags)

    sources, values = recorded(resolved), resolved_values(resolved)
    won = {name: source.value for name, source in sources.items() if source.value not in (None, {}) or name in values}
    won = {
        name: ({k: v for k, v in value.items() if v is not None} if name.endswith(":env") else value)
        for name, value in won.items()
    }
    assert {name: value for name, value in won.items() if value not in (None, {})} == {
        name: value for name, value in values.items() if value not in (None, {})
    }
    for record in (resolved, *resolved.stages):
        assert record.losers.keys() == record.sources.keys()


def test_losers_are_all_values_below_in_order(deployments: Any) -> None:
    """PR-01: every layer is remembered, the strongest first."""
    deployments.write("base.yaml", "stages: [{stage_id: 0, max_num_seqs: 1}]")
    overlay = (
        "base_config: base.yaml\nstages: [{stage_id: 0, max_num_seqs: 2}]\n"
        "platforms: {cpu: {stages: [{stage_id: 0, max_num_seqs: 3}]}}"
    )

    stage = deployments.resolve("two", overlay, overrides={"0": {"max_num_seqs": 5}}, max_num_seqs=4).stages[0]

    kept = (stage.sources["max_num_seqs"], *stage.losers["max_num_seqs"])
    assert [(source.layer, source.place, source.value) for source in kept] == [
        ("stage override", "--stage-overrides 0.max_num_seqs", 5),
        ("flag", "--max-num-seqs", 4),
        ("platform", "my.yaml:3:56", 3),
        ("overlay", "my.yaml:2:38", 2),
        ("base", "base.yaml:1:38", 1),
    ]


def test_erased_value_is_remembered(deployments: Any) -> None:
    """DY-04: null is the winner, and says what it erased."""
    deployments.write("base.yaml", "stages: [{stage_id: 0, max_num_seqs: 1}]")

    stage = deployments.resolve("two", "base_config: base.yaml\nstages: [{stage_id: 0, max_num_seqs: null}]").stages[0]

    assert "max_num_seqs" not in stage.engine_args
    assert stage.sources["max_num_seqs"].value is None
    assert [loser.value for loser in stage.losers["max_num_seqs"]] == [1]


def test_pipeline_wide_value_loses_against_the_stages(resolve: Resolve) -> None:
    """DY-05."""
    stage = resolve("two", "dtype: float32\nstages: [{stage_id: 0, dtype: bfloat16}]").stages[0]

    assert (stage.sources["dtype"].value, stage.losers["dtype"]) == ("bfloat16", (Source("base", "my.yaml:1:8"),))


def test_what_a_pipeline_fixes_wins_over_what_was_written(resolve: Resolve) -> None:
    """SM-01: `stop_token_ids` extend, and both parts can be seen."""
    text = "stages: [{stage_id: 0, default_sampling_params: {stop_token_ids: [5], detokenize: true}}]"

    stage = resolve("two", text).stages[0]

    name = "sampling.stop_token_ids"
    assert (stage.sources[name].layer, stage.sources[name].value) == ("pipeline", [5, 2150])
    assert [loser.value for loser in stage.losers[name]] == [[5]]
    assert [loser.value for loser in stage.losers["sampling.detokenize"]] == [True]


def test_edges_say_where_their_values_come_from(deployments: Any) -> None:
    deployments.write("base.yaml", "connectors: {shm: {name: SharedMemoryConnector, extra: {frames: 25}}}")
    text = (
        "base_config: base.yaml\nconnectors: {shm: {extra: {frames: 15}}}\n"
        "stages: [{stage_id: 0, output_connectors: {to_stage_1: shm}}]"
    )

    resolved = deployments.resolve("two", text)

    assert resolved.sources["edge.0-1.connector"] == Source("overlay", "my.yaml:3:56")
    assert (resolved.sources["edge.0-1.stream.frames"].value, resolved.losers["edge.0-1.stream.frames"][0].value) == (15, 25)


@pytest.mark.parametrize("model", ["two", "whole"])
def test_defaults_lose_too(resolve: Resolve, model: str) -> None:
    resolved = resolve(model, "model_runner: v1")

    assert resolved.stages[0].losers["model_runner"] == (Source("default"),)
    assert [loser.value for loser in resolved.stages[0].losers["model_runner"]] == ["v1"]
    assert resolved.sources["async_chunk"].value is (model == "two")
