"""Pipelines: rules PC-01 to PC-05, SP-01 and EO-01 to EO-05."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from omni_core.errors import ConfigError
from omni_core.pipeline import OutputType, PipelineConfig, StagePipelineConfig, parse_output_type


def _stage(stage_id: int, *sources: int, final: bool = False, **fields: object) -> StagePipelineConfig:
    return StagePipelineConfig(
        stage_id=stage_id,
        model_stage=f"s{stage_id}",
        input_sources=sources,
        final_output=final,
        **fields,  # type: ignore[arg-type]
    )


def _pipeline(*stages: StagePipelineConfig) -> PipelineConfig:
    return PipelineConfig(model_type="three", model_arch="Whole", stages=stages)


def test_pc_01_pipelines_and_stages_are_immutable() -> None:
    pipeline = _pipeline(_stage(0, final=True, sampling_constraints={"stop_token_ids": [1]}))

    with pytest.raises(FrozenInstanceError):
        pipeline.model_type = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        pipeline.stages[0].stage_id = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        pipeline.stages[0].sampling_constraints["n"] = 2  # type: ignore[index]


@pytest.mark.parametrize(
    ("stages", "fact"),
    [
        ((), "no stages"),
        ((_stage(0, final=True), _stage(0, final=True)), r"stage ids \[0\] appear twice"),
        ((_stage(1, final=True), _stage(0)), "contiguous from 0"),
        ((_stage(0), _stage(1, 7, final=True)), r"takes input from stages \[7\]"),
        ((_stage(0), _stage(1, 1, 0, final=True)), "lists itself"),
        ((_stage(0, 1), _stage(1, 0, final=True)), "no stage is an entry point"),
        ((_stage(0), _stage(1, 0)), "no stage has final_output"),
        ((_stage(0, final=True), _stage(1, 2), _stage(2, 1)), "1 -> 2 -> 1 form a cycle"),
        ((_stage(0, final=True, engine_output_type="wav"),), "write audio"),
    ],
    ids=["empty", "twice", "order", "missing", "self", "entry", "final", "cycle", "type"],
)
def test_e01_pc_03_a_faulty_topology_is_refused(stages: tuple[StagePipelineConfig, ...], fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        _pipeline(*stages)


def test_pc_03_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        _pipeline(_stage(0, 0), _stage(1, 9))

    for fact in ("'three'", "lists itself", "[9]", "entry point", "final_output"):
        assert fact in str(caught.value)


def test_edges_consumers_and_ancestors_follow_the_input_sources() -> None:
    pipeline = _pipeline(_stage(0, final=True), _stage(1, 0), _stage(2, 1, final=True, model_arch="Own"))

    assert pipeline.edges == ((0, 1), (1, 2))
    assert [stage.stage_id for stage in pipeline.consumers(0)] == [1]
    assert pipeline.ancestors([0]) == {0}
    assert pipeline.ancestors([2]) == {0, 1, 2}
    assert [pipeline.architecture(stage_id) for stage_id in (0, 2)] == ["Whole", "Own"]


def test_a_stage_survives_the_way_to_its_process() -> None:
    stage = _stage(0, final=True, sampling_constraints={"stop_token_ids": [5]}, extras={"tts_args": {"a": 1}})

    assert pickle.loads(pickle.dumps(stage)) == stage


@pytest.mark.parametrize(
    ("value", "types"),
    [
        (None, ["text"]),
        ("text+audio", ["text", "audio"]),
        ("text,audio", ["text", "audio"]),
        ("text+audio,latent", ["text", "audio", "latent"]),
        ("text+text", ["text"]),
        ("token_ids", ["token_ids"]),
    ],
)
def test_eo_02_eo_03_eo_07_canonical_types_are_read(value: str | None, types: list[str]) -> None:
    assert parse_output_type(value) == tuple(map(OutputType, types))


@pytest.mark.parametrize("value", ["", " ", "text ", "text, audio", "Text", "text+", "+text", "a++b", "TOKEN_IDS"])
def test_eo_04_anything_else_is_refused_with_the_list(value: str) -> None:
    with pytest.raises(ConfigError, match="text, image, audio, latent, token_ids"):
        parse_output_type(value)


@pytest.mark.parametrize(
    ("alias", "canonical"),
    [
        *((alias, "audio") for alias in ("speech", "wav", "waveform")),
        *((alias, "image") for alias in ("images", "pixel_values", "pixels")),
        ("latents", "latent"),
        ("tokens", "token_ids"),
    ],
)
def test_e25_eo_05_an_alias_is_refused_with_its_replacement(alias: str, canonical: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_output_type(f"text+{alias}", where="stage 3")

    assert alias in str(caught.value)
    assert canonical in caught.value.hint
    assert caught.value.where == "stage 3"
