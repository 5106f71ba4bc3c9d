"""Every bundled deploy file resolves on every platform and says what the contract asks for (BD, section 34, TT-01, TT-09)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import omni_connectors.plugin
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline
from omni_core.testing.plugins import make_manager, make_plugin
from omni_models_qwen import plugin
from omni_models_qwen.qwen3_omni.pipeline import QWEN3_OMNI_MOE

Resolve = Callable[..., ResolvedPipeline]

PLATFORMS = ("cuda", "cpu", "npu", "rocm", "xpu", "musa")
FUSED = "qwen3_tts_fused_single_gpu"
DUPLEX = "qwen3_omni_duplex"
MODELS = {
    "qwen2_5_omni": "qwen2_5_omni",
    "qwen3_omni_moe": "qwen3_omni_moe",
    "qwen3_omni_moe_thinking": "qwen3_omni_moe",
    DUPLEX: "qwen3_omni_moe",
    "qwen3_tts": "qwen3_tts",
    "qwen3_tts_mrv2": "qwen3_tts",
    "qwen3_tts_high_concurrency": "qwen3_tts",
    "qwen3_tts_high_concurrency_mrv2": "qwen3_tts",
    "qwen3_tts_high_concurrency_mrv2_b4": "qwen3_tts",
    "qwen3_tts_high_concurrency_mrv2_single_gpu": "qwen3_tts",
    FUSED: "qwen3_tts",
}
"""Each bundled file, and the checkpoints that it is for."""

HC = "qwen3_tts_high_concurrency"
UNSET = object()


def value_of(resolved: ResolvedPipeline, stage_id: int, name: str) -> Any:
    """Return a value of a stage by its name; names with a dot are in `engine_args`, `sampling` or the outgoing edge."""
    stage = resolved.stages[stage_id]
    if hasattr(stage, name):
        return getattr(stage, name)
    group, _, key = name.partition(".")
    if group == "sampling":
        return stage.sampling.get(key, UNSET)
    if group == "extra":
        return stage.outputs[0].stream.get(key, UNSET)
    found: Any = stage.engine_args
    for part in name.split("."):
        found = found.get(part, UNSET) if isinstance(found, dict) else UNSET
    return found


def sampling(*values: Any) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "max_tokens", "seed", "repetition_penalty")
    return {f"sampling.{name}": UNSET if value is None else value for name, value in zip(names, values, strict=True)}


def stage(devices: str, seqs: int, memory: float, batched: Any, length: Any, eager: Any, **other: Any) -> dict[str, Any]:
    return {
        "devices": devices,
        "max_num_seqs": seqs,
        "gpu_memory_utilization": memory,
        "max_num_batched_tokens": batched,
        "max_model_len": length,
        "enforce_eager": eager,
        **other,
    }


TALKER = {**sampling(0.9, None, 50, 4096, None, 1.05), "sampling.min_tokens": 2, "sampling.stop_token_ids": [2150]}
CODEC = sampling(0.0, 1.0, -1, 65536, None, 1.0)
PREDICTOR = {"mtp": {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0}}
NO_PREFIXES = {"enable_prefix_caching": False}
SCHEDULING = {"async_scheduling": True, **NO_PREFIXES}
TTS_CODEC = {"dtype": "bfloat16", **SCHEDULING, **CODEC}
CHUNKS = {
    "extra.codec_streaming": True,
    "extra.codec_chunk_frames": 25,
    "extra.codec_left_context_frames": 72,
    "extra.initial_codec_chunk_frames": 1,
    "extra.ref_code_context_frames": 72,
    "extra.talker_first_audio": True,
}
TTS_TALKER = {**SCHEDULING, **TALKER, **CHUNKS, "sampling.extra_args": PREDICTOR}

CUDA: list[tuple[str, int, dict[str, Any]]] = [
    (
        "qwen2_5_omni",
        0,
        stage("0", 1, 0.8, 32768, UNSET, True, mm_processor_cache_gb=0, async_chunk=False, model_runner="v1", **NO_PREFIXES)
        | sampling(0.0, 1.0, -1, 2048, 42, 1.1),
    ),
    (
        "qwen2_5_omni",
        1,
        stage("1", 1, 0.8, 32768, UNSET, True, **NO_PREFIXES, **{"sampling.stop_token_ids": [8294]})
        | sampling(0.9, 0.8, 40, 2048, 42, 1.05),
    ),
    (
        "qwen2_5_omni",
        2,
        stage("0", 1, 0.15, 32768, UNSET, True, async_scheduling=False, enable_flashinfer_autotune=False, **NO_PREFIXES)
        | sampling(0.0, 1.0, -1, 2048, 42, 1.1),
    ),
    (
        "qwen3_omni_moe",
        0,
        stage("0", 32, 0.9, 32768, UNSET, UNSET, moe_backend="triton", async_chunk=True, model_runner="v1", **NO_PREFIXES)
        | sampling(0.0, None, None, 2048, None, None)
        | {"compilation_config": {"custom_ops": ["+rotary_embedding"]}},
    ),
    (
        "qwen3_omni_moe",
        1,
        stage("1", 16, 0.7, 32768, UNSET, UNSET, moe_backend="triton", async_chunk=True, **NO_PREFIXES)
        | sampling(0.9, None, 50, 4096, 42, 1.05)
        | {
            "sampling.stop_token_ids": [2150],
            "extra.codec_chunk_frames": 25,
            "extra.initial_codec_chunk_frames": 4,
            "extra.codec_left_context_frames": 25,
        },
    ),
    (
        "qwen3_omni_moe",
        2,
        stage("1", 64, 0.1, 65536, UNSET, False, enable_chunked_prefill=False, async_scheduling=False, **NO_PREFIXES)
        | sampling(0.0, 1.0, -1, 65536, None, 1.1),
    ),
    (
        "qwen3_omni_moe_thinking",
        0,
        stage("0,1", 1, 0.9, UNSET, UNSET, True, tensor_parallel_size=2, async_scheduling=False, enable_prefix_caching=True)
        | sampling(0.4, 0.9, 1, 2048, 42, 1.05)
        | {"distributed_executor_backend": "mp", "pipeline": "qwen3_omni_moe_thinker_only"},
    ),
    ("qwen3_tts", 0, stage("0", 64, 0.3, 512, 4096, UNSET, model_runner="v2", async_chunk=True) | TTS_TALKER),
    ("qwen3_tts", 0, {"extra.decode_batch_max_size": 4, "extra.decode_cudagraph_batch_sizes": UNSET}),
    ("qwen3_tts", 1, stage("0", 64, 0.3, 65536, 65536, False, model_runner="v2") | TTS_CODEC),
    ("qwen3_tts_mrv2", 0, stage("0", 64, 0.3, 512, 4096, UNSET, model_runner="v2") | TTS_TALKER),
    ("qwen3_tts_mrv2", 0, {"extra.decode_batch_max_size": 1, "extra.decode_cudagraph_batch_sizes": [1]}),
    ("qwen3_tts_mrv2", 1, stage("0", 64, 0.3, 65536, 65536, False, model_runner="v2") | TTS_CODEC),
    (HC, 0, stage("0", 64, 0.3, 512, 4096, UNSET, model_runner="v1", async_chunk=True) | TTS_TALKER),
    (
        HC,
        0,
        {
            "extra.code_predictor_prefix_graphs": True,
            "extra.code_predictor_prefix_graph_buckets": [64],
            "extra.code_predictor_prefix_graph_seq_lens": [2, 3, 4, 5, 6, 7, 8],
            "extra.decode_batch_max_size": 1,
            "extra.decode_cudagraph_batch_sizes": [1],
            "extra.decode_enable_tf32": False,
        },
    ),
    (HC, 1, stage("1", 10, 0.3, 65536, 65536, True, model_runner="v1") | TTS_CODEC),
    (f"{HC}_mrv2", 0, stage("0", 64, 0.3, 512, 4096, UNSET, model_runner="v2") | TTS_TALKER),
    (
        f"{HC}_mrv2",
        0,
        {
            "extra.code_predictor_prefix_graphs": False,
            "extra.ref_audio_artifact_cache_max_entries": 1024,
            "extra.decode_batch_max_size": 2,
            "extra.decode_cudagraph_batch_sizes": [1, 2],
        },
    ),
    (f"{HC}_mrv2", 1, stage("1", 10, 0.3, 65536, 65536, False, model_runner="v2") | TTS_CODEC),
    (f"{HC}_mrv2_b4", 0, stage("0", 64, 0.3, 512, 4096, UNSET, model_runner="v2") | TTS_TALKER),
    (f"{HC}_mrv2_b4", 0, {"extra.decode_batch_max_size": 4, "extra.decode_cudagraph_batch_sizes": [1, 2, 3, 4]}),
    (f"{HC}_mrv2_b4", 1, stage("1", 10, 0.3, 65536, 65536, False, model_runner="v2") | TTS_CODEC),
    (f"{HC}_mrv2_single_gpu", 0, stage("0", 128, 0.3, 512, 4096, UNSET, model_runner="v2") | TTS_TALKER),
    (
        f"{HC}_mrv2_single_gpu",
        0,
        {
            "extra.code_predictor_prefix_graphs": False,
            "extra.code_predictor_kv_cache": True,
            "extra.code_predictor_fused_sampling": True,
            "extra.codec_time_major": True,
            "extra.decode_batch_max_size": 8,
            "extra.decode_cudagraph_batch_sizes": [1, 2, 3, 4, 5, 6, 7, 8],
        },
    ),
    (f"{HC}_mrv2_single_gpu", 1, stage("0", 32, 0.3, 65536, 65536, False, model_runner="v2") | TTS_CODEC),
    (FUSED, 0, stage("0", 64, 0.6, 512, 4096, UNSET, model_runner="v2", async_chunk=True) | SCHEDULING | TALKER),
    (
        FUSED,
        0,
        {
            "pipeline": "qwen3_tts_fused",
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "distributed_executor_backend": "uni",
            "additional_config": {
                "talker_stream_decode": True,
                "talker_stream_first_audio": False,
                "ref_code_context_frames": 72,
                "code_predictor_kv_cache": True,
                "code_predictor_fused_sampling": True,
                "code_predictor_fused": True,
            },
            "sampling.extra_args": PREDICTOR,
        },
    ),
]
"""(file, stage, values) on CUDA."""

PIECEWISE = {"compilation_config.cudagraph_mode": "PIECEWISE"}
OTHERS: list[tuple[str, str, int, dict[str, Any]]] = [
    ("qwen2_5_omni", "npu", 0, {"enforce_eager": False, "devices": "0"}),
    ("qwen2_5_omni", "npu", 2, {"devices": "2", "enforce_eager": True}),
    ("qwen2_5_omni", "xpu", 0, {"gpu_memory_utilization": 0.9, "enforce_eager": True, "devices": "0"}),
    ("qwen2_5_omni", "xpu", 1, {"gpu_memory_utilization": 0.5, "enforce_eager": True, "devices": "1"}),
    ("qwen2_5_omni", "xpu", 2, {"gpu_memory_utilization": 0.3, "devices": "1"}),
    ("qwen3_omni_moe", "musa", 1, {"hf_overrides": {"quantization_config": None}}),
    ("qwen3_omni_moe", "musa", 2, {"hf_overrides": {"quantization_config": None}}),
    (
        "qwen3_omni_moe",
        "npu",
        0,
        {
            "gpu_memory_utilization": 0.6,
            "tensor_parallel_size": 2,
            "max_num_batched_tokens": 8192,
            "devices": "0,1",
            **PIECEWISE,
        },
    ),
    ("qwen3_omni_moe", "npu", 1, {"gpu_memory_utilization": 0.6, "max_num_batched_tokens": 8192, "devices": "2", **PIECEWISE}),
    ("qwen3_omni_moe", "npu", 2, {"gpu_memory_utilization": 0.3, "devices": "2", **PIECEWISE}),
    ("qwen3_omni_moe", "rocm", 2, {"enforce_eager": True}),
    (
        "qwen3_omni_moe",
        "xpu",
        0,
        {"tensor_parallel_size": 4, "enforce_eager": True, "max_cudagraph_capture_size": 0, "devices": "0,1,2,3"},
    ),
    ("qwen3_omni_moe", "xpu", 1, {"enforce_eager": True, "max_cudagraph_capture_size": 0, "devices": "4"}),
    ("qwen3_omni_moe", "xpu", 2, {"gpu_memory_utilization": 0.3, "devices": "4"}),
    ("qwen3_tts", "npu", 0, {"enforce_eager": False, **PIECEWISE}),
    ("qwen3_tts", "npu", 1, PIECEWISE),
    ("qwen3_tts", "rocm", 1, {"enforce_eager": True}),
    (HC, "npu", 0, {"enforce_eager": True}),
]
"""(file, platform, stage, values) elsewhere."""


def test_the_bundle_has_these_files_and_no_others() -> None:
    (folder,) = plugin.omni_deploy_dirs()

    assert {file.name for file in folder.iterdir()} == {f"{name}.yaml" for name in MODELS}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in {FUSED, DUPLEX}])
def test_bundled_file_resolves_without_a_warning(
    name: str, platform: str, resolve: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        resolved = resolve(MODELS[name], f"{name}.yaml", platform=platform)

    assert Path(resolved.files[0]).name == f"{name}.yaml"
    assert caplog.messages == []
    assert [text for text in resolved.warnings if "cuda_mps has no effect" not in text] == []


@pytest.mark.parametrize(("name", "stage_id", "values"), CUDA, ids=[f"BD-{name}-{stage_id}" for name, stage_id, _ in CUDA])
def test_value_on_cuda(name: str, stage_id: int, values: dict[str, Any], resolve: Resolve) -> None:
    resolved = resolve(MODELS[name], f"{name}.yaml")

    assert {key: value_of(resolved, stage_id, key) for key in values} == values


@pytest.mark.parametrize(
    ("name", "platform", "stage_id", "values"),
    OTHERS,
    ids=[f"BD-{name}-{platform}-{stage_id}" for name, platform, stage_id, _ in OTHERS],
)
def test_value_on_another_platform(name: str, platform: str, stage_id: int, values: dict[str, Any], resolve: Resolve) -> None:
    resolved = resolve(MODELS[name], f"{name}.yaml", platform=platform)

    assert {key: value_of(resolved, stage_id, key) for key in values} == values


@pytest.mark.parametrize("platform", ["cpu", "npu", "rocm", "xpu", "musa"])
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("qwen3_tts") and name != FUSED])
def test_every_tts_profile_keeps_the_first_runner_outside_cuda(name: str, platform: str, resolve: Resolve) -> None:
    """MR-10, TT-01."""
    assert {stage.model_runner for stage in resolve("qwen3_tts", f"{name}.yaml", platform=platform).stages} == {"v1"}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in {FUSED, DUPLEX}])
def test_no_stage_is_placed_on_a_device_or_waits_for_graphs_on_a_cpu(name: str, resolve: Resolve) -> None:
    for stage in resolve(MODELS[name], f"{name}.yaml", platform="cpu").stages:
        assert (stage.devices, stage.model_runner) == (None, "v1")
        assert stage.engine_args["dtype"] == "float32"
        assert stage.engine_args["enforce_eager"] is True
        assert "gpu_memory_utilization" not in stage.engine_args
        assert "moe_backend" not in stage.engine_args
        assert stage.topology.execution_type != "LLM_AR" or stage.engine_args["kv_cache_memory_bytes"] >= 1 << 30


@pytest.mark.parametrize("name", [name for name in MODELS if name != DUPLEX])
def test_no_bundled_file_trusts_code_of_the_checkpoint(name: str, resolve: Resolve) -> None:
    """Every class is this package's, vLLM's or transformers': there is nothing that a checkpoint's own code is needed for."""
    for stage in resolve(MODELS[name], f"{name}.yaml").stages:
        assert "trust_remote_code" not in stage.engine_args


def test_only_the_single_gpu_profile_asks_for_mps(resolve: Resolve) -> None:
    """MP-01: off by default; the seed's single-GPU profile turns it on."""
    names = [name for name in MODELS if name != DUPLEX]
    asked = [name for name in names if resolve(MODELS[name], f"{name}.yaml").values.get("cuda_mps")]

    assert asked == [f"{HC}_mrv2_single_gpu"]


@pytest.mark.parametrize(("platform", "number"), [("cuda", 0), ("npu", 1)])
def test_mps_of_the_single_gpu_profile_is_pointless_elsewhere_and_that_is_said(
    platform: str, number: int, resolve: Resolve
) -> None:
    """It stands at the top level, so that an overlay's `cuda_mps: false` turns it off; so it is there on every platform."""
    warnings = resolve("qwen3_tts", f"{HC}_mrv2_single_gpu.yaml", platform=platform).warnings

    assert len(warnings) == number
    assert all("cuda_mps has no effect on npu" in text for text in warnings)


def test_mps_is_turned_off_by_an_overlay(resolve: Resolve, tmp_path: Path) -> None:
    """The seed's way to turn automatic MPS off."""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(f"base_config: {HC}_mrv2_single_gpu.yaml\ncuda_mps: false\n")

    assert resolve("qwen3_tts", overlay).values["cuda_mps"] is False


@pytest.mark.parametrize("platform", [name for name in PLATFORMS if name != "cuda"])
def test_the_fused_profile_is_refused_outside_cuda(platform: str, resolve: Resolve) -> None:
    """TT-03."""
    with pytest.raises(ConfigError, match=f"qwen3_tts_fused.*the platform is {platform}, not cuda"):
        resolve("qwen3_tts", f"{FUSED}.yaml", platform=platform)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_duplex_profile_resolves_for_a_pipeline_with_a_duplex_plugin(platform: str, resolve: Resolve) -> None:
    able = replace(QWEN3_OMNI_MOE, duplex_plugin="omni_core.testing.fakes:SumVocoder")
    names = ("omni_architectures", "omni_deploy_dirs", "omni_stage_runner", "omni_config_resolved")
    hooks = {name: getattr(plugin, name) for name in names}
    manager = make_manager(
        {"omni-connectors": omni_connectors.plugin, "duplex": make_plugin(omni_pipelines=[able], **hooks)},
    )

    resolved = resolve("qwen3_omni_moe", f"{DUPLEX}.yaml", platform=platform, manager=manager)

    assert resolved.values["session_mode"] == "duplex"
    assert resolved.stages[0].engine_args["limit_mm_per_prompt"] == {"audio": 4, "image": 8}
    assert resolved.stages[2].engine_args["max_num_batched_tokens"] == 65536
    assert [Path(file).name for file in resolved.files] == [f"{DUPLEX}.yaml", "qwen3_omni_moe.yaml"]


def test_the_seeds_worked_example_comes_out_as_in_its_table(resolve: Resolve, tmp_path: Path) -> None:
    """PR-04, DF-28: an overlay, a global flag and a stage override on the bundled file."""
    overlay = tmp_path / "my_overrides.yaml"
    overlay.write_text("base_config: qwen3_omni_moe.yaml\nstages:\n  - stage_id: 1\n    gpu_memory_utilization: 0.5\n")

    resolved = resolve(
        "qwen3_omni_moe",
        overlay,
        flags={"max_model_len": 16384},
        stage_overrides='{"0": {"max_num_seqs": 8}}',
    )

    names = ("gpu_memory_utilization", "max_num_seqs", "max_model_len")
    assert [[stage.engine_args[name] for name in names] for stage in resolved.stages[:2]] == [[0.9, 8, 16384], [0.5, 16, 16384]]
    layers = [[stage.sources[name].layer for name in names] for stage in resolved.stages[:2]]
    assert layers == [["base", "stage override", "flag"], ["overlay", "base", "flag"]]


def test_the_default_file_of_a_checkpoint_is_its_pipelines(resolve: Resolve) -> None:
    """RG-13."""
    silent = resolve("qwen3_omni_moe", config={"enable_audio_output": False})

    assert [Path(file).name for file in silent.files] == ["qwen3_omni_moe_thinking.yaml"]
    assert [Path(file).name for file in resolve("qwen2_5_omni").files] == ["qwen2_5_omni.yaml"]
    assert [Path(file).name for file in resolve("qwen3_omni_moe").files] == ["qwen3_omni_moe.yaml"]
    assert [Path(file).name for file in resolve("qwen3_tts").files] == ["qwen3_tts.yaml"]
