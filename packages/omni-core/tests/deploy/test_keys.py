from collections.abc import Callable
from typing import Any

import pytest

from omni_core.deploy.diffusion import SHARED_WITH_DIFFUSION
from omni_core.deploy.engine_names import ENGINE_ARG_NAMES, RESERVED_NAMES
from omni_core.deploy.keys import PIPELINE_WIDE, owned_names
from omni_core.deploy.schema import EngineFields, PipelineWideFields, StageDeployConfig
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType
from omni_core.stage import ResolvedPipeline, Source

Resolve = Callable[..., ResolvedPipeline]

FAULTS = [
    ("async_chunks: true", "1:1", "async_chunks is not one of the top-level fields", "did you mean 'async_chunk'?"),
    ("stage_args: []", "1:1", "stage_args is not a field any more", "write `stages:`"),
    ("model_arch: X", "1:1", "model_arch is topology", "define a pipeline"),
    ("gpu_memory_utilization: 0.5", "1:1", "is a field of a stage", "under `stages:`"),
    ("stages: [{stage_id: 0, input_sources: [0]}]", "1:24", "input_sources is topology", "define a pipeline"),
    ("stages: [{stage_id: 0, final_output: true}]", "1:24", "final_output is topology", "define a pipeline"),
    ("stages: [{stage_id: 0, engine_args: {}}]", "1:24", "engine_args is not a field any more", "write its fields flat"),
    ("stages: [{stage_id: 0, runtime: {}}]", "1:24", "runtime is not a field any more", "write devices"),
    ("stages: [{stage_id: 0, max_num_seq: 3}]", "1:24", "max_num_seq is not one of", "did you mean 'max_num_seqs'?"),
    ("stages: [{stage_id: 0, engine_extras: {foo: 1}}]", "1:40", "engine_extras.foo is not one of", "docs/deploy.md"),
    (
        "stages: [{stage_id: 0, engine_extras: {use_v2_model_runner: true}}]",
        "1:40",
        "engine_extras.use_v2_model_runner cannot be set",
        "set model_runner",
    ),
    ("stages: [{max_num_seqs: 3}]", "1:10", "has no stage_id", "which stage"),
    ("stages: [{stage_id: 1}, {stage_id: 1}]", "1:25", "stage 1 is here twice, first at my.yaml:1:10", "one entry"),
    ("connectors: {shm: {nam: X}}", "1:20", "nam is not one of the fields of connectors.shm", "did you mean 'name'?"),
    ("duplex_session: {max_session: 1}", "1:18", "max_session is not one of", "did you mean 'max_sessions'?"),
    ("platforms: {npu: {pipeline: x}}", "1:19", "pipeline is not one of the fields of platforms.npu", ""),
    ("platforms: {npu: {stages: [{stage_id: 0, foo: 1}]}}", "1:42", "foo is not one of", ""),
]


@pytest.mark.parametrize(("text", "place", "message", "hint"), FAULTS, ids=[fault[2][:40] for fault in FAULTS])
def test_wrong_key_is_refused_at_its_place(resolve: Resolve, text: str, place: str, message: str, hint: str) -> None:
    """PC-01, DY-08, SF-01 to SF-04, E07 to E10."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("two", text)
    assert caught.value.where == f"my.yaml:{place}"
    assert hint in caught.value.hint


def test_place_of_an_unknown_key_is_exact(resolve: Resolve) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("two", "stages:\n  - stage_id: 0\n    foo: 1\n")
    assert caught.value.where == "my.yaml:3:5"


def test_unknown_stage_lists_the_stages(resolve: Resolve) -> None:
    """SF-02, E08."""
    with pytest.raises(ConfigError, match="pipeline 'two' has no stage 7") as caught:
        resolve("two", "stages: [{stage_id: 7}]")
    assert "0 (talker), 1 (vocoder)" in caught.value.hint


def test_unknown_stage_of_another_platform_is_refused_too(resolve: Resolve) -> None:
    """PL-05: sections of other platforms are checked, not applied."""
    with pytest.raises(ConfigError, match="has no stage 7"):
        resolve("two", "platforms: {npu: {stages: [{stage_id: 7}]}}", platform="cpu")


def test_backends_at_the_top_level_are_ignored_with_a_warning(resolve: Resolve) -> None:
    """BK-02."""
    resolved = resolve("two", "moe_backend: auto")

    (warning,) = resolved.warnings
    assert warning.startswith("my.yaml:1:1: moe_backend is ignored here")
    assert "moe_backend" not in resolved.stages[0].engine_args


def test_argument_of_the_engine_without_a_field_of_its_own_is_forwarded(resolve: Resolve) -> None:
    """SF-03."""
    text = "stages: [{stage_id: 0, limit_mm_per_prompt: {audio: 1}, engine_extras: {seed: 3, limit_mm_per_prompt: {image: 2}}}]"

    engine_args = resolve("two", text).stages[0].engine_args

    assert engine_args == {"limit_mm_per_prompt": {"audio": 1, "image": 2}, "seed": 3}


def test_field_wins_over_engine_extras_with_a_warning(resolve: Resolve) -> None:
    """BK-07: equal values are no conflict."""
    text = "stages: [{stage_id: 0, moe_backend: triton, max_num_seqs: 4, engine_extras: {moe_backend: auto, max_num_seqs: 4}}]"

    resolved = resolve("two", text)

    assert resolved.stages[0].engine_args["moe_backend"] == "triton"
    assert resolved.stages[0].losers["moe_backend"] == (Source("base", "my.yaml:1:91"),)
    (warning,) = resolved.warnings
    assert "engine_extras.moe_backend is ignored" in warning


def test_types_of_fields_are_checked_inside_engine_extras_too(resolve: Resolve) -> None:
    with pytest.raises(
        ConfigError, match=r"^my.yaml:1:54: stages\.0\.engine_extras\.max_num_seqs: input should be an integer \(got .many.\)"
    ):
        resolve("two", "stages: [{stage_id: 0, engine_extras: {max_num_seqs: many}}]")


@pytest.mark.parametrize(
    ("model", "text", "message", "hint"),
    [
        ("two", "stages: [{stage_id: 1, attention_backend: X}]", "stage 1 .vocoder. of type LLM_GENERATION has no field", ""),
        ("two", "stages: [{stage_id: 0, ulysses_degree: 2}]", "LLM_AR has no field ulysses_degree", ""),
        ("picture", "stages: [{stage_id: 1, attention_backend: X}]", "DIFFUSION has no field", "diffusion_attention_config"),
        ("picture", "stages: [{stage_id: 1, enable_lora: true}]", "DIFFUSION has no field enable_lora", "lora_path"),
    ],
)
def test_stage_takes_only_fields_that_its_type_owns(resolve: Resolve, model: str, text: str, message: str, hint: str) -> None:
    """SF-03, BK-01, LR-05, E09, E26, E27."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(model, text)
    assert hint in caught.value.hint


def test_every_engine_field_is_an_argument_of_the_engine() -> None:
    assert set(EngineFields.model_fields) | set(PipelineWideFields.model_fields) <= ENGINE_ARG_NAMES
    assert set(EngineFields.model_fields) | set(PIPELINE_WIDE) >= SHARED_WITH_DIFFUSION
    assert not set(RESERVED_NAMES) & (ENGINE_ARG_NAMES | set(StageDeployConfig.model_fields))


def test_pipeline_wide_fields_are_owned_by_every_type() -> None:
    for kind in ExecutionType:
        assert set(PIPELINE_WIDE) <= owned_names(kind)


def test_declared_diffusion_fields_reach_only_their_stage(resolve: Resolve) -> None:
    resolved = resolve("picture", "stages: [{stage_id: 1, cache_backend: tea_cache}]")

    assert [stage.engine_args for stage in resolved.stages] == [
        {},
        {"cache_backend": "tea_cache", "distributed_executor_backend": "uni"},
    ]


def test_null_of_a_foreign_field_is_no_fault(resolve: Resolve) -> None:
    values: dict[str, Any] = dict(resolve("two", "stages: [{stage_id: 1, attention_backend: null}]").stages[1].engine_args)

    assert values == {}


def test_null_sections_and_null_extras_are_nothing(resolve: Resolve) -> None:
    text = "stages: [{stage_id: 0, engine_extras: null, seed: 1}]\nplatforms: {cpu: null}\nconnectors: {shm: null}\n"

    assert resolve("two", text + "duplex_session: null").stages[0].engine_args == {"seed": 1}


def test_null_section_of_an_overlay_erases_the_bases(deployments: Any) -> None:
    """DY-04."""
    deployments.write("base.yaml", "platforms: {cpu: {dtype: float32}}")

    assert deployments.resolve("two", "base_config: base.yaml\nplatforms: {cpu: null}").stages[0].engine_args == {}
