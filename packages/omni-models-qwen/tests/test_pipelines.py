"""The pipelines of this package: their topology (section 25), how a checkpoint chooses one, and what cannot be started yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, PipelineConfig
from omni_core.stage import ResolvedPipeline
from omni_core.target import load_target
from omni_models_qwen import plugin

Resolve = Callable[..., ResolvedPipeline]

PIPELINES = {pipeline.model_type: pipeline for pipeline in plugin.omni_pipelines()}
AR, GENERATION = ExecutionType.LLM_AR, ExecutionType.LLM_GENERATION

TOPOLOGY: dict[str, list[tuple[Any, ...]]] = {
    "qwen2_5_omni": [
        ("thinker", AR, (), "text", "latent", {"detokenize": True}),
        ("talker", AR, (0,), None, "latent", {"detokenize": True, "stop_token_ids": [8294]}),
        ("code2wav", GENERATION, (1,), "audio", "audio", {"detokenize": True}),
    ],
    "qwen2_5_omni_thinker_only": [("thinker", AR, (), "text", "latent", {"detokenize": True})],
    "qwen3_omni_moe": [
        ("thinker", AR, (), "text", "latent", {"detokenize": True}),
        ("talker", AR, (0,), None, "latent", {"detokenize": False, "stop_token_ids": [2150]}),
        ("code2wav", GENERATION, (1,), "audio", "audio", {"detokenize": True}),
    ],
    "qwen3_omni_moe_thinker_only": [("thinker", AR, (), "text", "text", {"detokenize": True})],
    "qwen3_tts": [
        ("qwen3_tts", AR, (), None, "latent", {"detokenize": False, "stop_token_ids": [2150]}),
        ("code2wav", GENERATION, (0,), "audio", "audio", {"detokenize": True}),
    ],
    "qwen3_tts_fused": [("qwen3_tts", AR, (), "audio", "audio", {"detokenize": False, "stop_token_ids": [2150]})],
}


def row(pipeline: PipelineConfig, stage_id: int) -> tuple[Any, ...]:
    stage = pipeline.stage(stage_id)
    final = stage.final_output_type if stage.final_output else None
    return (
        stage.model_stage,
        stage.execution_type,
        stage.input_sources,
        final,
        stage.engine_output_type,
        dict(stage.sampling_constraints),
    )


def test_there_are_these_pipelines() -> None:
    """RG-15."""
    assert set(PIPELINES) == set(TOPOLOGY)


@pytest.mark.parametrize("key", TOPOLOGY)
def test_topology_is_that_of_the_contract(key: str) -> None:
    pipeline = PIPELINES[key]

    assert [row(pipeline, stage.stage_id) for stage in pipeline.stages] == TOPOLOGY[key]
    assert [stage.owns_tokenizer for stage in pipeline.stages] == [True] + [False] * (len(pipeline.stages) - 1)


@pytest.mark.parametrize("key", [key for key in PIPELINES if "omni" in key])
def test_only_thinkers_of_omni_models_get_multimodal_data(key: str) -> None:
    for stage in PIPELINES[key].stages:
        assert stage.requires_multimodal_data is (stage.model_stage == "thinker")


@pytest.mark.parametrize("key", PIPELINES)
def test_every_target_can_be_loaded(key: str) -> None:
    """PC-08; the input processor and the speech adapter are checked by their own tests."""
    for stage in PIPELINES[key].stages:
        for field, target in stage.targets.items():
            if "next_stage" in field:
                assert callable(load_target(target))


@pytest.mark.parametrize("key", PIPELINES)
def test_hand_over_in_chunks_is_declared_where_the_contract_has_it(key: str) -> None:
    streaming = [stage.model_stage for stage in PIPELINES[key].stages if stage.async_chunk_process_next_stage_input_func]

    assert streaming == {"qwen3_omni_moe": ["thinker", "talker"], "qwen3_tts": ["qwen3_tts"]}.get(key, [])


@pytest.mark.parametrize("key", ["qwen3_omni_moe", "qwen3_tts", "qwen3_tts_fused"])
def test_stages_of_these_pipelines_have_the_native_data_plane(key: str) -> None:
    """DF-08."""
    assert all(stage.supports_native_mrv2_data_plane for stage in PIPELINES[key].stages)


def test_qwen3_omni_has_duplex_on_the_second_runner_and_no_completions() -> None:
    """MR-05, PC-02, DY-07."""
    pipeline = PIPELINES["qwen3_omni_moe"]

    assert (pipeline.supports_duplex_mrv2, pipeline.default_session_mode) == (True, "turn")
    ((endpoint, reason),) = pipeline.endpoint_restrictions
    assert endpoint == "completions"
    assert "/v1/chat/completions" in reason


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "qwen3_omni_moe", "enable_audio_output": True}, "qwen3_omni_moe"),
        ({"model_type": "qwen3_omni_moe"}, "qwen3_omni_moe"),
        ({"model_type": "qwen3_omni_moe", "enable_audio_output": False}, "qwen3_omni_moe_thinker_only"),
        (
            {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "enable_audio_output": False},
            "qwen3_omni_moe_thinker_only",
        ),
        ({"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}, "qwen3_omni_moe"),
        ({"model_type": "qwen2_5_omni", "enable_audio_output": False}, "qwen2_5_omni"),
        ({"architectures": ["Qwen2_5OmniModel"]}, "qwen2_5_omni"),
        ({"architectures": ["Qwen2_5OmniForConditionalGeneration"]}, "qwen2_5_omni"),
        ({"architectures": ["Qwen3TTSForConditionalGeneration"]}, "qwen3_tts"),
    ],
    ids=str,
)
def test_checkpoint_chooses_its_pipeline(config: dict[str, Any], key: str, resolve: Resolve) -> None:
    """RG-03, RG-05, RG-07."""
    assert resolve(None, config=config).config.model_type == key


def test_the_thinker_alone_is_chosen_by_the_deploy_file(resolve: Resolve, tmp_path: Any) -> None:
    """SI-08."""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("pipeline: qwen2_5_omni_thinker_only\n")

    (stage,) = resolve("qwen2_5_omni", overlay, platform="cpu").stages

    assert (stage.architecture, stage.architecture_target) == ("Qwen2_5OmniForConditionalGeneration", None)
    assert stage.runner == "omni_core.engine.ar.runner:ArRunner"


def test_one_end_of_a_streaming_edge_cannot_be_taken_out(resolve: Resolve) -> None:
    """DY-06, as observed in section 35."""
    with pytest.raises(ConfigError, match="from stage 0 to stage 1"):
        resolve("qwen3_omni_moe", stage_overrides={1: {"async_chunk": False}})


def test_qwen2_5_omni_cannot_stream(resolve: Resolve) -> None:
    """DY-06, as observed in section 35."""
    with pytest.raises(ConfigError, match="'qwen2_5_omni': async_chunk is on, but no stage can hand on chunks"):
        resolve("qwen2_5_omni", flags={"async_chunk": True})


@pytest.mark.parametrize("key", PIPELINES)
def test_every_stage_has_a_class_and_a_runner(key: str, resolve: Resolve) -> None:
    config = {"enable_audio_output": False} if key == "qwen3_omni_moe_thinker_only" else {}
    name = key.removesuffix("_thinker_only").removesuffix("_fused")
    stages = resolve(name, config=config).stages

    assert all(stage.runner for stage in stages)
    assert [stage.architecture_target is None for stage in stages] == [
        stage.topology.model_stage == "thinker" for stage in stages
    ]
