"""The bundled deploy file says what the contract asks for (BD, TT-09, TT-14, TT-15)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_core.deploy.resolve import resolve_deployment
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.stage import ResolvedPipeline


@pytest.fixture
def resolved(data_folder: Path) -> Callable[[str], ResolvedPipeline]:
    return lambda platform: resolve_deployment(data_folder, platform=platform)


def test_cuda_runs_the_talker_on_the_second_runner(resolved: Callable[[str], ResolvedPipeline]) -> None:
    talker, codec = resolved("cuda").stages

    assert (talker.model_runner, codec.model_runner) == ("v2", "v2")
    assert (talker.devices, codec.devices) == ("0", "0")
    assert talker.engine_args["max_num_batched_tokens"] == 512
    assert talker.engine_args["max_model_len"] == 4096
    assert talker.engine_args["enable_prefix_caching"] is False
    assert codec.engine_args["dtype"] == "bfloat16"


def test_cpu_runs_in_float32_on_the_first_runner_without_devices(resolved: Callable[[str], ResolvedPipeline]) -> None:
    for stage in resolved("cpu").stages:
        assert (stage.model_runner, stage.devices) == ("v1", None)
        assert stage.engine_args["dtype"] == "float32"
        assert stage.engine_args["enforce_eager"] is True
        assert "gpu_memory_utilization" not in stage.engine_args


def test_kv_cache_on_cpu_holds_a_whole_request_of_the_released_models(resolved: Callable[[str], ResolvedPipeline]) -> None:
    args = resolved("cpu").stages[0].engine_args
    layers, key_heads, head_dim, float32 = 28, 8, 128, 4

    assert args["kv_cache_memory_bytes"] >= args["max_model_len"] * layers * 2 * key_heads * head_dim * float32


def test_sampling_is_the_models_own_and_its_end_is_a_constraint(resolved: Callable[[str], ResolvedPipeline]) -> None:
    sampling = resolved("cpu").stages[0].sampling

    assert (sampling["temperature"], sampling["top_k"], sampling["repetition_penalty"]) == (0.9, 50, 1.05)
    assert (sampling["min_tokens"], sampling["max_tokens"]) == (2, 4096)
    assert sampling["extra_args"]["mtp"] == {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0}
    assert sampling["stop_token_ids"] == [2150]
    assert sampling["detokenize"] is False


def test_the_edge_streams_with_the_chunk_policy(resolved: Callable[[str], ResolvedPipeline]) -> None:
    (edge,) = resolved("cpu").stages[0].outputs

    assert edge.async_chunk
    assert edge.target == "omni_connectors.shm:SharedMemoryConnector"
    assert (edge.stream["codec_chunk_frames"], edge.stream["initial_codec_chunk_frames"]) == (25, 1)
    assert (edge.stream["codec_left_context_frames"], edge.stream["ref_code_context_frames"]) == (72, 72)
    assert edge.stream["talker_first_audio"] is True


@pytest.mark.parametrize("architecture", ["Qwen3TTSForConditionalGeneration"])
def test_a_checkpoint_without_model_type_is_known_by_its_architecture(
    data_folder: Path, model_info: Callable[[Path], ModelInfo], tmp_path: Path, architecture: str
) -> None:
    config = json.loads((data_folder / "config.json").read_text())
    del config["model_type"]
    assert config["architectures"] == [architecture]

    assert resolve_deployment(ModelInfo("m", tmp_path, config), platform="cpu").config.model_type == "qwen3_tts"


def test_a_misspelt_chunk_option_stops_the_start(data_folder: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        "base_config: qwen3_tts.yaml\nconnectors:\n  connector_of_shared_memory:\n    extra:\n      codec_chunk_frame: 10\n"
    )

    with pytest.raises(ConfigError, match="did you mean codec_chunk_frames"):
        resolve_deployment(data_folder, deploy_config=overlay, platform="cpu")


def test_first_audio_can_be_rolled_back_by_an_overlay(data_folder: Path, tmp_path: Path) -> None:
    """TT-12."""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        "base_config: qwen3_tts.yaml\nconnectors:\n  connector_of_shared_memory:\n    extra:\n      talker_first_audio: false\n"
    )

    resolved = resolve_deployment(data_folder, deploy_config=overlay, platform="cpu")

    assert resolved.stages[0].outputs[0].stream["talker_first_audio"] is False
    assert resolved.stages[0].outputs[0].stream["codec_chunk_frames"] == 25
