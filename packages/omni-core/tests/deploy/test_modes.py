from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline, Source

Resolve = Callable[..., ResolvedPipeline]


def streams(resolved: ResolvedPipeline) -> list[bool]:
    return [edge.async_chunk for stage in resolved.stages for edge in stage.outputs]


def test_chunks_are_handed_on_by_default(resolve: Resolve) -> None:
    """DY-02: the default of async_chunk is true."""
    resolved = resolve("two")

    assert resolved.async_chunk is True
    assert resolved.sources["async_chunk"] == Source("default")
    assert [stage.async_chunk for stage in resolved.stages] == [True, True]
    assert streams(resolved) == [True]


def test_flag_switches_it_off(resolve: Resolve) -> None:
    resolved = resolve("two", "async_chunk: true", async_chunk=False)

    assert resolved.async_chunk is False
    assert resolved.sources["async_chunk"].layer == "flag"
    assert streams(resolved) == [False]


@pytest.mark.parametrize(("model", "expected"), [("one", False), ("fused", True)])
def test_single_stage_has_no_chunks_unless_it_makes_them_itself(resolve: Resolve, model: str, expected: bool) -> None:
    """DY-06, TT-03."""
    assert resolve(model, "async_chunk: true").async_chunk is expected
    assert resolve(model, "async_chunk: false").async_chunk is False


def test_asking_for_chunks_that_no_stage_can_make_is_an_error(resolve: Resolve) -> None:
    """DY-06, E14."""
    with pytest.raises(ConfigError, match="'whole': async_chunk is on, but no stage can") as caught:
        resolve("whole", "async_chunk: true")
    assert "async_chunk: false" in caught.value.hint
    assert caught.value.where == "my.yaml:1:14"


def test_pipeline_of_whole_payloads_needs_no_setting(resolve: Resolve) -> None:
    resolved = resolve("whole")

    assert resolved.async_chunk is False
    assert resolved.sources["async_chunk"] == Source("pipeline", "pipeline whole")


def test_ends_of_an_edge_must_agree(resolve: Resolve) -> None:
    """DY-06, E14."""
    with pytest.raises(ConfigError, match=r"'three': async_chunk differs .* stage 0 to stage 1") as caught:
        resolve("three", "stages: [{stage_id: 1, async_chunk: false}]")
    assert caught.value.where == "my.yaml:1:37"


def test_stages_can_leave_together(resolve: Resolve) -> None:
    text = "stages: [{stage_id: 0, async_chunk: false}, {stage_id: 1, async_chunk: false}]"

    resolved = resolve("two", text)

    assert resolved.async_chunk is True
    assert [stage.async_chunk for stage in resolved.stages] == [False, False]
    assert streams(resolved) == [False]


def test_stage_cannot_switch_it_on_alone(resolve: Resolve) -> None:
    """DY-06."""
    resolved = resolve("two", "async_chunk: false\nstages: [{stage_id: 0, async_chunk: true}]")

    assert [stage.async_chunk for stage in resolved.stages] == [False, False]
    (warning,) = resolved.warnings
    assert "my.yaml:2:37: async_chunk of stage 0 has no effect" in warning


def test_native_kv_transfer_needs_whole_payloads(resolve: Resolve) -> None:
    """DY-06, E14."""
    text = "stages: [{stage_id: 0, kv_transfer_config: {kv_role: kv_producer}}]"

    with pytest.raises(ConfigError, match="the kv_transfer_config of stage 0"):
        resolve("two", text)
    assert resolve("two", "async_chunk: false\n" + text).async_chunk is False


def with_duplex(deployments: Any, **fields: Any) -> None:
    deployments.hooks["omni_pipelines"] = [
        replace(config, duplex_plugin="omni_core.testing.fakes:SumVocoder", **fields) if config.model_type == "two" else config
        for config in deployments.hooks["omni_pipelines"]
    ]


def test_session_mode_is_turn_for_pipelines_without_duplex(resolve: Resolve) -> None:
    assert resolve("two").values["session_mode"] == "turn"


def test_duplex_without_a_plugin_is_an_error(resolve: Resolve) -> None:
    """DY-07, E15."""
    with pytest.raises(ConfigError, match="pipeline 'two' has no duplex sessions"):
        resolve("two", "session_mode: duplex")


def test_pipeline_with_duplex_needs_a_choice(deployments: Any) -> None:
    """DY-07, E15."""
    with_duplex(deployments)

    with pytest.raises(ConfigError, match="needs session_mode turn or duplex"):
        deployments.resolve("two")
    assert deployments.resolve("two", "session_mode: duplex").values["session_mode"] == "duplex"

    with_duplex(deployments, default_session_mode="turn")
    assert deployments.resolve("two").values["session_mode"] == "turn"


def native(deployments: Any) -> None:
    deployments.hooks["omni_pipelines"] = [
        replace(config, stages=tuple(replace(stage, supports_native_mrv2_data_plane=True) for stage in config.stages))
        for config in deployments.hooks["omni_pipelines"]
    ]


@pytest.mark.parametrize(
    ("text", "platform", "expected"),
    [
        ("", "cpu", ["v1", "v1"]),
        ("model_runner: v2", "cpu", ["v2", "v2"]),
        ("model_runner: v2\nstages: [{stage_id: 0, model_runner: v1}]", "cpu", ["v1", "v2"]),
        ("model_runner: v2\nplatforms: {cpu: {model_runner: v1}}", "cpu", ["v1", "v1"]),
        ("model_runner: v2\nplatforms: {cpu: {model_runner: v1}}", "cuda", ["v2", "v2"]),
        ("stages: [{stage_id: 0, model_runner: v2}]\nplatforms: {cpu: {model_runner: v1}}", "cpu", ["v2", "v1"]),
        (
            "stages: [{stage_id: 0, model_runner: v2}]\nplatforms: {cpu: {stages: [{stage_id: 0, model_runner: v1}]}}",
            "cpu",
            ["v1", "v1"],
        ),
    ],
    ids=["default", "deploy", "stage", "platform", "other platform", "stage over platform scalar", "platform stage over stage"],
)
def test_order_of_model_runners(deployments: Any, text: str, platform: str, expected: list[str]) -> None:
    """MR-01, MR-02: platform stage entry, stage entry, platform scalar, deploy scalar."""
    native(deployments)

    resolved = deployments.resolve("two", text, platform=platform)

    assert [stage.model_runner for stage in resolved.stages] == expected


def test_v2_without_the_native_data_plane_is_one_warning_for_each_stage(resolve: Resolve) -> None:
    """MR-04."""
    (one,) = resolve("two", "stages: [{stage_id: 0, model_runner: v2}]").warnings
    both = resolve("two", "model_runner: v2").warnings

    assert one.startswith("stage 0 (talker, FakeModel) runs on model runner v2 without its native data plane")
    assert [text.split(" runs ")[0] for text in both] == ["stage 0 (talker, FakeModel)", "stage 1 (vocoder, FakeVocoder)"]


def test_duplex_on_v2_needs_the_pipelines_support(deployments: Any) -> None:
    """MR-05, E24."""
    native(deployments)
    with_duplex(deployments)

    with pytest.raises(ConfigError, match="no duplex sessions on model runner v2, which stage 1 uses"):
        deployments.resolve("two", "session_mode: duplex\nmodel_runner: v2")

    with_duplex(deployments, supports_duplex_mrv2=True)
    assert deployments.resolve("two", "session_mode: duplex\nmodel_runner: v2").stages[1].model_runner == "v2"
