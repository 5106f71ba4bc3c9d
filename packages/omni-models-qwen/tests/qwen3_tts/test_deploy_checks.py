"""What a deployment of Qwen3-TTS must fulfil: the single stage's conditions, where options are written, what is only logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]

FUSED = "qwen3_tts_fused_single_gpu.yaml"
LOGGER = "omni_models_qwen.qwen3_tts.deploy_checks"
ANY_EXECUTOR = "distributed_executor_backend: null\n"
"""Core itself refuses two ranks in the executor that the profile names."""
TWO = 'devices: "0,1"'


def extra(text: str) -> str:
    return f"connectors: {{connector_of_shared_memory: {{extra: {{{text}}}}}}}\n"


def options(text: str) -> str:
    return f"stages: [{{stage_id: 0, additional_config: {{{text}}}}}]\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model_runner: v1\n", "model_runner is v1, not v2"),
        ("async_chunk: false\n", "async_chunk is off"),
        (f"{ANY_EXECUTOR}stages: [{{stage_id: 0, tensor_parallel_size: 2, {TWO}}}]\n", "tensor_parallel_size is 2, not 1"),
        (f"{ANY_EXECUTOR}pipeline_parallel_size: 2\nstages: [{{stage_id: 0, {TWO}}}]\n", "pipeline_parallel_size is 2, not 1"),
        ("distributed_executor_backend: mp\n", "distributed_executor_backend is mp, not uni"),
        ("enable_prefix_caching: true\n", "enable_prefix_caching is not false"),
        ("enable_prefix_caching: null\n", "enable_prefix_caching is not false"),
    ],
    ids=["runner", "chunks", "tensor-parallel", "pipeline-parallel", "executor", "prefixes", "prefixes-unset"],
)
def test_single_stage_names_the_condition_that_is_not_met(
    text: str, named: str, resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    """TT-03, E30."""
    with pytest.raises(ConfigError, match="pipeline 'qwen3_tts_fused' cannot run") as caught:
        resolve("qwen3_tts", overlay(FUSED, text))

    assert named in caught.value.message
    assert caught.value.message.count(";") == 0


def test_single_stage_names_all_conditions_at_once(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("qwen3_tts", overlay(FUSED, "model_runner: v1\nenable_prefix_caching: true\n"), platform="xpu")

    for named in ("platform is xpu", "model_runner is v1", "enable_prefix_caching"):
        assert named in caught.value.message


def test_executor_is_in_process_where_nobody_says_otherwise(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    (stage,) = resolve("qwen3_tts", overlay(FUSED, "distributed_executor_backend: null\n")).stages

    assert "distributed_executor_backend" not in stage.engine_args


def test_seeds_overlay_for_first_audio_of_the_single_stage_is_accepted(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    """TT-05."""
    text = (
        "stages:\n  - stage_id: 0\n    additional_config:\n      talker_stream_decode: true\n"
        "      talker_stream_first_audio: true\n      ref_code_context_frames: 72\n      code_predictor_kv_cache: true\n"
        "      code_predictor_fused_sampling: true\n      code_predictor_fused: true\n"
    )

    (stage,) = resolve("qwen3_tts", overlay(FUSED, text)).stages

    assert stage.engine_args["additional_config"]["talker_stream_first_audio"] is True


def test_single_stage_pipeline_without_its_profile_is_refused(resolve: Resolve, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("pipeline: qwen3_tts_fused\nmodel_runner: v2\nenable_prefix_caching: false\n")

    with pytest.raises(ConfigError, match="needs talker_stream_decode: true") as caught:
        resolve("qwen3_tts", path)

    assert FUSED in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("talker_stream_decode: 1", "talker_stream_decode must be true or false, not 1"),
        ("ref_code_context_frames: -1", "ref_code_context_frames must be a whole number of at least 0, not -1"),
        ("ref_code_context_frames: 7.5", "ref_code_context_frames must be a whole number of at least 0, not 7.5"),
        ("code_predictor_fuse: true", "'code_predictor_fuse' is not an option"),
        ("talker_first_audio: true", "talker_first_audio needs the two stages of another pipeline"),
    ],
    ids=["switch", "negative", "fraction", "misspelt", "two-stage-option"],
)
def test_wrong_option_of_the_single_stage_is_named_with_its_place(
    text: str, message: str, resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    """E34."""
    with pytest.raises(ConfigError) as caught:
        resolve("qwen3_tts", overlay(FUSED, options(text)))

    assert message in caught.value.message
    assert "mine.yaml:2:" in caught.value.where


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("decode_enable_tf32: 1", "decode_enable_tf32 must be true or false, not 1"),
        ("decode_batch_max_size: -1", "decode_batch_max_size must be a whole number of at least 0, not -1"),
    ],
)
def test_wrong_option_of_the_single_stages_decoder_is_named(
    key: str, message: str, resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    """TT-16, E34."""
    with pytest.raises(ConfigError) as caught:
        resolve("qwen3_tts", overlay(FUSED, options(key)))

    assert message in caught.value.message
    assert "mine.yaml:2:" in caught.value.where


TF32 = "decode_enable_tf32: true"


@pytest.mark.parametrize(
    ("file", "text", "platform", "words"),
    [
        ("qwen3_tts.yaml", extra(TF32), "cuda", ("connectors.connector_of_shared_memory.extra", "computes in bfloat16, not")),
        ("qwen3_tts.yaml", extra(TF32), "cpu", ("connectors.connector_of_shared_memory.extra", "no effect on cpu")),
        ("qwen3_tts.yaml", extra(TF32) + "stages: [{stage_id: 1, dtype: float32}]\n", "cuda", ()),
        ("qwen3_tts.yaml", extra(TF32) + "stages: [{stage_id: 0, dtype: half}, {stage_id: 1, dtype: null}]\n", "rocm", ()),
        ("qwen3_tts.yaml", extra("decode_enable_tf32: false"), "cpu", ()),
        (FUSED, options(TF32), "cuda", ()),
        (FUSED, "dtype: float16\n" + options(TF32), "cuda", ("mine.yaml:3:", "computes in float16, not")),
    ],
    ids=["bfloat16", "cpu", "float32", "left to the decoder", "off", "one stage", "one stage, float16"],
)
def test_tf32_that_changes_nothing_is_warned_about(
    file: str, text: str, platform: str, words: tuple[str, ...], resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    """TT-16: it is about float32 products on CUDA."""
    warnings = resolve("qwen3_tts", overlay(file, text), platform=platform).warnings

    assert [all(word in said for word in words) for said in warnings] == [True] * bool(words)


def test_overrides_of_the_codecs_configuration_are_said_to_have_no_effect(
    resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    text = "stages: [{stage_id: 0, hf_overrides: {a: 1}}, {stage_id: 1, hf_overrides: {sample_rate: 8000}}]\n"

    (said,) = resolve("qwen3_tts", overlay("qwen3_tts.yaml", text)).warnings

    assert said == "stage 1 (code2wav): hf_overrides has no effect: the decoder reads the config.json in speech_tokenizer"


def test_switch_of_the_single_stage_that_changes_nothing_in_two_is_said(
    resolve: Resolve, overlay: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", options("code_predictor_fused: false, talker_stream_decode: false")))

    said = [message for message in caplog.messages if "without effect" in message]
    assert said == ["stage 0 (qwen3_tts): without effect here: code_predictor_fused (the code predictor always works so)"]


def test_both_first_audio_options_of_the_single_stage_are_refused(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    """TT-06."""
    with pytest.raises(ConfigError, match=r"talker_first_audio needs .* cannot go together with talker_stream_first_audio"):
        resolve("qwen3_tts", overlay(FUSED, options("talker_stream_first_audio: true, talker_first_audio: true")))


def test_switch_that_changes_nothing_in_the_single_stage_is_said_once(
    resolve: Resolve, overlay: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        resolve("qwen3_tts", overlay(FUSED, options("code_predictor_fused: false, code_predictor_kv_cache: true")))

    (message,) = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert "without effect here: code_predictor_fused (the code predictor always works so)" in message


@pytest.mark.parametrize(
    ("key", "hint"),
    [("codec_chunk_frame: 25", "did you mean codec_chunk_frames?"), ("decode_loud: true", "the options are")],
    ids=["misspelt", "unknown"],
)
def test_option_of_a_stage_that_nobody_reads_is_refused(
    key: str, hint: str, resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match="is not an option of pipeline 'qwen3_tts'") as caught:
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", options(key)))

    assert "mine.yaml:2:" in caught.value.where
    assert hint in caught.value.hint
    assert "connectors.NAME.extra" in caught.value.hint


def test_options_of_the_platform_in_additional_config_are_left_alone(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    (stage,) = resolve("qwen3_tts", overlay(FUSED, options("ascend_scheduler_config: {enabled: true}"))).stages

    assert stage.engine_args["additional_config"]["ascend_scheduler_config"] == {"enabled": True}


def test_decoding_in_the_talker_of_two_stages_is_refused(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    """TT-04."""
    with pytest.raises(ConfigError, match="talker_stream_decode is for the single-stage pipeline") as caught:
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", options("talker_stream_decode: true")))

    assert "mine.yaml:2:" in caught.value.where
    assert FUSED in caught.value.hint


def test_both_ways_to_the_first_audio_exclude_each_other(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    """TT-06, E30."""
    with pytest.raises(ConfigError) as caught:
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", options("talker_stream_first_audio: true")))

    assert "talker_stream_first_audio" in caught.value.message
    assert "talker_first_audio; only one" in caught.value.message


@pytest.mark.parametrize("key", ["ref_code_context_frames: 25", "code_predictor_kv_cache: true", "talker_first_audio: true"])
def test_option_of_the_edge_does_not_belong_to_a_stage(key: str, resolve: Resolve, overlay: Callable[..., Path]) -> None:
    """TT-04."""
    with pytest.raises(ConfigError, match="is an option of the edge") as caught:
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", options(key)))

    assert "connectors" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("codec_chunk_frames: 0", "codec_chunk_frames must be a whole number of at least 1, not 0"),
        ("codec_left_context_frames: -1", "codec_left_context_frames must be a whole number of at least 0, not -1"),
        ("initial_codec_chunk_frames: 1.5", "initial_codec_chunk_frames must be a whole number"),
        ("ref_audio_artifact_cache_max_entries: -1", "ref_audio_artifact_cache_max_entries must be"),
        ("talker_first_audio: 1", "talker_first_audio must be true or false"),
        ("decode_cudagraph_capture_sizes: 4", "decode_cudagraph_capture_sizes must be a list of whole numbers"),
        ("decode_chunk_frames: 300", "'decode_chunk_frames' has no meaning here"),
        ("decode_left_context_frames: 25", "'decode_left_context_frames' has no meaning here"),
        ("connector_get_sleep_s: fast", "connector_get_sleep_s must be a number of at least 0"),
        ("decode_cudagraph_batch_sizes: [0]", "decode_cudagraph_batch_sizes must be a list of whole numbers"),
        ("talker_stream_decode: true", "'talker_stream_decode' is not an option"),
    ],
)
def test_wrong_option_of_the_edge_names_key_and_value(
    text: str, message: str, resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    """E34, TT-15, TT-16."""
    with pytest.raises(ConfigError) as caught:
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", extra(text)))

    assert message in caught.value.message
    assert caught.value.where == "connectors.connector_of_shared_memory.extra"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("decode_cudagraph_batch_sizes: [1, 2], decode_batch_max_size: 4", ("decode_batch_max_size is 4", "sizes is 2")),
        ("codec_chunk_frames: 10, initial_codec_chunk_frames: 12", ("initial_codec_chunk_frames 12 is cut", "frames 10")),
        ('codec_chunk_ramp: "4, 8, 16"', ("codec_chunk_ramp ends with 16", "codec_chunk_frames 25")),
        ('codec_chunk_ramp: "4,x"', ("codec_chunk_ramp is off: '4,x' is not at least 2 whole numbers above 0",)),
        ("codec_chunk_ramp: [25]", ("codec_chunk_ramp is off: [25]",)),
        ("codec_chunk_ramp: [4, 0]", ("codec_chunk_ramp is off: [4, 0]",)),
        ("codec_chunk_ramp: [4, 25], codec_chunk_adaptive: true", ("codec_chunk_ramp has no effect, because",)),
        ("codec_chunk_min_frames: 4", ("codec_chunk_min_frames without codec_chunk_adaptive: true",)),
        ("codec_chunk_min_frames: 40, codec_chunk_adaptive: true", ("codec_chunk_min_frames 40 is cut",)),
    ],
    ids=[
        "TT-16-buckets",
        "TT-15-initial",
        "TT-15-ramp",
        "TT-15-ramp-text",
        "TT-15-ramp-short",
        "TT-15-ramp-zero",
        "TT-15-both",
        "TT-15-not-adaptive",
        "TT-15-least",
    ],
)
def test_options_that_fit_each_other_badly_are_one_warning(
    text: str, words: tuple[str, ...], resolve: Resolve, overlay: Callable[..., Path]
) -> None:
    (message,) = resolve("qwen3_tts", overlay("qwen3_tts.yaml", extra(text))).warnings

    assert message.startswith("connectors.connector_of_shared_memory.extra: ")
    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("text", "platform", "reason"),
    [
        ("", "cpu", "the platform is cpu, not cuda; model_runner is v1, not v2"),
        ("model_runner: v1\n", "cuda", "model_runner is v1, not v2"),
        ("async_chunk: false\n", "cuda", "async_chunk is off"),
        (extra("codec_streaming: false"), "cuda", "codec_streaming is off"),
        ("distributed_executor_backend: mp\n", "cuda", "distributed_executor_backend is mp, not uni"),
        ("enable_prefix_caching: true\n", "cuda", "enable_prefix_caching is not false"),
    ],
    ids=["cpu", "runner", "chunks", "streaming", "executor", "prefixes"],
)
def test_first_audio_that_falls_back_is_said_once_with_the_reason(
    text: str,
    platform: str,
    reason: str,
    resolve: Resolve,
    overlay: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """TT-11: a fallback, not an error."""
    with caplog.at_level(logging.INFO, logger=LOGGER):
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", text), platform=platform)

    (message,) = caplog.messages
    assert message == f"stage 0 (qwen3_tts): Code2Wav delivers the first audio too (talker_first_audio): {reason}"


def test_first_audio_runs_in_the_talkers_process_where_everything_is_met(
    resolve: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    """TT-09, TT-11."""
    with caplog.at_level(logging.INFO, logger=LOGGER):
        talker, codec = resolve("qwen3_tts", "qwen3_tts.yaml").stages

    assert caplog.messages == ["stage 0 (qwen3_tts): its process delivers the first frame's audio (talker_first_audio)"]
    assert talker.runner == "omni_models_qwen.qwen3_tts.talker_runners:FirstAudioRunner"
    assert talker.requires == ("torch", "vllm")
    assert codec.runner == "omni_core.engine.light_runner:LightRunner"


def test_first_audio_that_falls_back_keeps_cores_runner(resolve: Resolve, overlay: Callable[..., Path]) -> None:
    for text in ("model_runner: v1\n", extra("talker_first_audio: false")):
        talker = resolve("qwen3_tts", overlay("qwen3_tts.yaml", text)).stages[0]

        assert talker.runner == "omni_core.engine.ar.runner:ArRunner"


def test_switch_for_tests_waives_platform_and_runner_and_nothing_else(
    resolve: Resolve, overlay: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMNI_TEST_CUDA_PATHS", "1")

    assert resolve("qwen3_tts", platform="cpu").stages[0].runner.endswith(":FirstAudioRunner")
    (fused,) = resolve("qwen3_tts", overlay(FUSED, "model_runner: v1\n"), platform="cpu").stages
    assert fused.runner.endswith(":FusedRunner")
    with caplog.at_level(logging.INFO, logger=LOGGER):
        resolve("qwen3_tts", overlay("qwen3_tts.yaml", "async_chunk: false\n"), platform="cpu")
    assert caplog.messages[-1].endswith("(talker_first_audio): async_chunk is off")


def test_single_stage_runs_with_the_decoder_in_its_process(resolve: Resolve) -> None:
    """TT-02."""
    (stage,) = resolve("qwen3_tts", FUSED).stages

    assert stage.runner == "omni_models_qwen.qwen3_tts.talker_runners:FusedRunner"
    assert stage.requires == ("torch", "vllm")


def test_options_without_effect_are_said_with_the_reason(
    resolve: Resolve, overlay: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """TT-16."""
    text = extra("connector_get_sleep_s: 0.01, codec_time_major: true, talker_first_audio: false")
    with caplog.at_level(logging.INFO, logger=LOGGER):
        resolved = resolve("qwen3_tts", overlay("qwen3_tts.yaml", text))

    (message,) = caplog.messages
    assert message.startswith("connectors.connector_of_shared_memory.extra: without effect here: ")
    assert "connector_get_sleep_s (chunks are announced" in message
    assert "codec_time_major (the codec has one layout)" in message
    assert resolved.warnings == ()


def test_nothing_is_said_where_first_audio_is_off(
    resolve: Resolve, overlay: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """TT-12."""
    with caplog.at_level(logging.INFO, logger=LOGGER):
        resolved = resolve("qwen3_tts", overlay("qwen3_tts.yaml", extra("talker_first_audio: false")))

    assert resolved.stages[0].outputs[0].stream["talker_first_audio"] is False
    assert caplog.messages == []


@pytest.mark.parametrize("key", ["codec_chunk_frame", "talker_first_audio"])
def test_option_that_qwen3_omni_does_not_have_is_refused(key: str, resolve: Resolve, overlay: Callable[..., Path]) -> None:
    values: dict[str, Any] = {"codec_chunk_frame": "25", "talker_first_audio": "true"}

    with pytest.raises(ConfigError, match=f"'{key}' is not an option of Qwen3-Omni"):
        resolve("qwen3_omni_moe", overlay("qwen3_omni_moe.yaml", extra(f"{key}: {values[key]}")))
