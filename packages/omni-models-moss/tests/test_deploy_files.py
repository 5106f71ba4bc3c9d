"""Every bundled deploy file resolves on every platform and says what the contract asks for (MO-01 to MO-05, BD)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline
from omni_models_moss import plugin

Resolve = Callable[..., ResolvedPipeline]

FILES = ("moss_tts_local", "moss_tts_local_npu_mrv2", "moss_tts_local_2npu", "moss_tts_local_3npu")
OTHERS = {
    "moss_tts_delay": ("moss_tts", {"temperature": 1.7, "top_p": 0.8, "top_k": 25, "repetition_penalty": 1.0}, 36 * 8 * 128),
    "moss_tts_realtime": (
        "moss_tts_realtime",
        {"temperature": 0.8, "top_p": 0.6, "top_k": 30, "repetition_penalty": 1.1},
        28 * 8 * 128,
    ),
    "moss_tts_nano": (
        "moss_tts_nano",
        {"temperature": 0.8, "top_p": 0.95, "top_k": 25, "repetition_penalty": 1.2},
        12 * 12 * 64,
    ),
}
"""The other pipelines, one file each: the talker's stage, its sampling, and keys of the released model in each position."""
PLATFORMS = ("cuda", "cpu", "npu", "rocm", "xpu", "musa")
GRAPHS = [1, 2, 4, 8, 16, 32, 64]
UNSET = object()

TALKER = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 65536,
    "max_model_len": 4096,
    "enable_prefix_caching": False,
    "async_scheduling": True,
    "kv_cache_memory_bytes": UNSET,
    "attention_backend": UNSET,
    "model_runner": "v1",
    "async_chunk": True,
    "sampling.temperature": 1.7,
    "sampling.top_p": 0.8,
    "sampling.top_k": 25,
    "sampling.max_tokens": 4096,
    "sampling.seed": 42,
    "sampling.repetition_penalty": 1.0,
    "sampling.stop_token_ids": [151645],
    "sampling.detokenize": False,
    "extra.codec_streaming": True,
    "extra.initial_codec_chunk_frames": 1,
    "extra.codec_chunk_frames": 15,
    "extra.codec_left_context_frames": 0,
}
CODEC = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 65536,
    "max_model_len": 65536,
    "enforce_eager": False,
    "enable_prefix_caching": False,
    "async_scheduling": True,
    "compilation_config": {"cudagraph_capture_sizes": GRAPHS, "cudagraph_num_of_warmups": 1},
    "model_runner": "v1",
    "sampling.temperature": 0.0,
    "sampling.top_p": 1.0,
    "sampling.top_k": -1,
    "sampling.max_tokens": 65536,
    "sampling.seed": 42,
    "sampling.repetition_penalty": 1.0,
}
NPU_GRAPHS = {**CODEC["compilation_config"], "cudagraph_mode": "PIECEWISE"}  # type: ignore[dict-item]

CASES: list[tuple[str, str, str, int, dict[str, Any]]] = [
    (
        "MO-02",
        "moss_tts_local",
        "cuda",
        0,
        TALKER
        | {
            "model_runner": "v2",
            "devices": "0",
            "max_num_seqs": 128,
            "max_num_batched_tokens": 512,
            "kv_cache_memory_bytes": 34359738368,
            "enable_prefix_caching": True,
            "attention_backend": "TRITON_ATTN",
            "compilation_config": {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [*GRAPHS, 128]},
            "extra.codec_dispatch_max_rows": 16,
            "extra.codec_dispatch_max_wait_ms": 6,
            "extra.talker_first_audio": True,
        },
    ),
    (
        "MO-02",
        "moss_tts_local",
        "cuda",
        1,
        CODEC
        | {
            "model_runner": "v2",
            "devices": "0",
            "max_num_seqs": 128,
            "hf_overrides": {"codec_attention_backend": "triton_slot"},
            "compilation_config": {
                "backend": "inductor",
                "cudagraph_capture_sizes": [*GRAPHS, 128],
                "cudagraph_num_of_warmups": 1,
            },
        },
    ),
    ("MO-04", "moss_tts_local", "rocm", 0, TALKER | {"devices": "0", "gpu_memory_utilization": 0.6}),
    ("MO-04", "moss_tts_local", "rocm", 1, CODEC | {"devices": "0", "gpu_memory_utilization": 0.3, "hf_overrides": UNSET}),
    ("MO-04", "moss_tts_local", "npu", 0, TALKER | {"devices": "0", "extra.talker_first_audio": UNSET}),
    ("MO-04", "moss_tts_local", "npu", 1, CODEC | {"devices": "0", "compilation_config": NPU_GRAPHS}),
    (
        "MO-04",
        "moss_tts_local_npu_mrv2",
        "npu",
        0,
        TALKER | {"model_runner": "v2", "extra.talker_first_audio": False, "extra.codec_dispatch_max_rows": UNSET},
    ),
    ("MO-04", "moss_tts_local_npu_mrv2", "npu", 1, CODEC | {"model_runner": "v2", "compilation_config": NPU_GRAPHS}),
    ("MO-05", "moss_tts_local_2npu", "npu", 0, TALKER | {"devices": "0", "gpu_memory_utilization": 0.8, "num_replicas": 1}),
    ("MO-05", "moss_tts_local_2npu", "npu", 1, CODEC | {"devices": "1", "gpu_memory_utilization": 0.5, "num_replicas": 1}),
    ("MO-05", "moss_tts_local_3npu", "npu", 0, TALKER | {"devices": "0", "gpu_memory_utilization": 0.8, "num_replicas": 1}),
    ("MO-05", "moss_tts_local_3npu", "npu", 1, CODEC | {"devices": "1,2", "gpu_memory_utilization": 0.5, "num_replicas": 2}),
]


def value_of(resolved: ResolvedPipeline, stage_id: int, name: str) -> Any:
    stage = resolved.stages[stage_id]
    if hasattr(stage, name):
        return getattr(stage, name)
    group, _, key = name.partition(".")
    places = {"sampling": stage.sampling, "extra": stage.outputs[0].stream if stage.outputs else {}}
    return places[group].get(key, UNSET) if key else stage.engine_args.get(name, UNSET)


def test_the_bundle_has_these_files_and_no_others() -> None:
    (folder,) = plugin.omni_deploy_dirs()

    assert {file.name for file in folder.iterdir()} == {f"{name}.yaml" for name in (*FILES, *OTHERS)}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", OTHERS)
def test_the_other_pipelines_have_one_file_on_model_runner_v1(
    name: str, platform: str, resolve: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    """MO-05."""
    with caplog.at_level(logging.WARNING):
        resolved = resolve(f"{name}.yaml", platform=platform, model_type=name)
        default = resolve(platform=platform, model_type=name)

    stage, sampling, _ = OTHERS[name]
    talker, codec = resolved.stages
    assert default.stages == resolved.stages
    assert (talker.topology.model_stage, codec.topology.model_stage) == (stage, f"{stage}_codec")
    assert {key: talker.sampling[key] for key in sampling} == sampling
    assert (talker.model_runner, codec.model_runner, talker.async_chunk) == ("v1", "v1", True)
    assert (resolved.warnings, caplog.messages) == ((), [])


@pytest.mark.parametrize("name", OTHERS)
def test_kv_cache_on_cpu_holds_a_whole_request_of_each_released_model(name: str, resolve: Resolve) -> None:
    args = resolve(f"{name}.yaml", platform="cpu", model_type=name).stages[0].engine_args

    assert args["kv_cache_memory_bytes"] >= args["max_model_len"] * 2 * OTHERS[name][2] * 4


@pytest.mark.parametrize("name", OTHERS)
def test_first_audio_of_the_talker_is_refused_where_there_is_none(name: str, resolve: Resolve, tmp_path: Path) -> None:
    """MO-05."""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        f"base_config: {name}.yaml\nconnectors: {{connector_of_shared_memory: {{extra: {{talker_first_audio: true}}}}}}\n"
    )

    with pytest.raises(ConfigError, match=f"the talker of {name} holds no decoder"):
        resolve(overlay, model_type=name)


def test_first_audio_of_the_talker_is_warned_about_where_its_kernels_are_not(resolve: Resolve, tmp_path: Path) -> None:
    """MO-04."""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        "base_config: moss_tts_local.yaml\nconnectors: {connector_of_shared_memory: {extra: {talker_first_audio: true}}}\n"
    )

    (warning,) = resolve(overlay, platform="npu").warnings

    assert "talker_first_audio has no effect on npu" in warning


@pytest.mark.parametrize(
    ("option", "warning"),
    [
        ("codec_left_context_frames: 5", "codec_left_context_frames has no effect: the codec keeps a state"),
        ("codec_dispatch_max_rows: 4", "codec_dispatch_max_rows alone has no effect"),
        ("codec_dispatch_max_wait_ms: 4", "codec_dispatch_max_wait_ms alone has no effect"),
        ("initial_codec_chunk_frames: 20", "initial_codec_chunk_frames 20 is cut to codec_chunk_frames 15"),
    ],
    ids=["context", "rows", "wait", "first payload"],
)
@pytest.mark.parametrize("name", ["moss_tts_local", "moss_tts_delay"])
def test_an_option_that_does_not_do_what_it_says_is_warned_about(
    name: str, option: str, warning: str, resolve: Resolve, tmp_path: Path
) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(f"base_config: {name}.yaml\nconnectors: {{connector_of_shared_memory: {{extra: {{{option}}}}}}}\n")

    (said,) = resolve(overlay, platform="cpu", model_type=name).warnings

    assert warning in said
    assert "connectors.connector_of_shared_memory.extra" in said


NAMED = "audio_tokenizer_name_or_path: /codec"


@pytest.mark.parametrize(
    ("talker", "codec", "warnings"),
    [
        ("n_vq: 8", "codec_attention_backend: triton_slot", []),
        (NAMED, NAMED, []),
        ("", NAMED, ["is not set for stage 0 (moss_tts), which encodes recordings, and '/codec' for stage 1 (moss_tts_codec)"]),
        (NAMED, "", ["is '/codec' for stage 0 (moss_tts), which encodes recordings, and not set for stage 1"]),
        ("", "sampling_rate: 8000, n_vq: 8", ["stage 1 (moss_tts_codec): hf_overrides: n_vq, sampling_rate: no effect"]),
    ],
    ids=["talker", "both", "codec only", "talker only", "sizes"],
)
def test_override_that_does_not_do_what_it_says_is_warned_about(
    talker: str, codec: str, warnings: list[str], resolve: Resolve, tmp_path: Path
) -> None:
    overlay = tmp_path / "mine.yaml"
    stages = f"[{{stage_id: 0, hf_overrides: {{{talker}}}}}, {{stage_id: 1, hf_overrides: {{{codec}}}}}]"
    overlay.write_text(f"base_config: moss_tts_delay.yaml\nstages: {stages}\n")

    said = resolve(overlay, platform="cpu", model_type="moss_tts_delay").warnings

    assert len(said) == len(warnings)
    assert all(words in text for words, text in zip(warnings, said, strict=True))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", FILES)
def test_bundled_file_resolves_without_a_warning(
    name: str, platform: str, resolve: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        resolved = resolve(f"{name}.yaml", platform=platform)

    assert [stage.topology.model_stage for stage in resolved.stages] == ["moss_tts_local", "moss_tts_local_codec"]
    assert (resolved.warnings, caplog.messages) == ((), [])


@pytest.mark.parametrize(
    ("rule", "name", "platform", "stage_id", "values"), CASES, ids=[f"{rule}-{f}-{p}-{i}" for rule, f, p, i, _ in CASES]
)
def test_value(rule: str, name: str, platform: str, stage_id: int, values: dict[str, Any], resolve: Resolve) -> None:
    resolved = resolve(f"{name}.yaml", platform=platform)

    assert {key: value_of(resolved, stage_id, key) for key in values} == values


def test_leaving_the_file_out_is_the_same_as_naming_it(resolve: Resolve) -> None:
    """MO-01."""
    named, default = resolve("moss_tts_local.yaml"), resolve()

    assert default.files == named.files
    assert default.stages == named.stages


@pytest.mark.parametrize(
    ("name", "platform", "wanted"),
    [
        ("moss_tts_local", "cuda", True),
        ("moss_tts_local", "npu", None),
        ("moss_tts_local", "rocm", None),
        ("moss_tts_local_npu_mrv2", "npu", None),
        ("moss_tts_local_2npu", "cuda", None),
    ],
)
def test_mps_is_asked_for_on_cuda_only(name: str, platform: str, wanted: bool | None, resolve: Resolve) -> None:
    """MO-02, MO-03."""
    assert resolve(f"{name}.yaml", platform=platform).values.get("cuda_mps") is wanted


def test_no_file_sets_a_quota_of_mps(resolve: Resolve) -> None:
    """MO-02: the private daemon has its full quota."""
    for name in FILES:
        for stage in resolve(f"{name}.yaml").stages:
            assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in stage.env


def test_a_smaller_gpu_overrides_capacities_and_mps(resolve: Resolve, tmp_path: Path) -> None:
    """MO-03."""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        "base_config: moss_tts_local.yaml\nplatforms:\n  cuda:\n    cuda_mps: false\n    stages:\n      - stage_id: 0\n"
        "        max_num_seqs: 32\n        kv_cache_memory_bytes: 8589934592\n"
        "        compilation_config: {cudagraph_capture_sizes: [1, 8, 32]}\n"
    )

    resolved = resolve(overlay)

    talker = resolved.stages[0].engine_args
    assert resolved.values["cuda_mps"] is False
    assert (talker["max_num_seqs"], talker["kv_cache_memory_bytes"]) == (32, 8589934592)
    assert talker["compilation_config"] == {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 8, 32]}
    assert talker["max_num_batched_tokens"] == 512


def test_cpu_runs_in_float32_without_devices_and_graphs(resolve: Resolve) -> None:
    for stage in resolve(platform="cpu").stages:
        assert (stage.model_runner, stage.devices) == ("v1", None)
        assert stage.engine_args["dtype"] == "float32"
        assert stage.engine_args["enforce_eager"] is True
        assert "gpu_memory_utilization" not in stage.engine_args
        assert "compilation_config" not in stage.engine_args
    assert resolve(platform="cpu").stages[0].engine_args["kv_cache_memory_bytes"] == 1 << 31


def test_kv_cache_on_cpu_holds_a_whole_request_of_the_released_model(resolve: Resolve) -> None:
    args = resolve(platform="cpu").stages[0].engine_args
    layers, key_heads, head_dim, float32 = 36, 8, 128, 4

    assert args["kv_cache_memory_bytes"] >= args["max_model_len"] * layers * 2 * key_heads * head_dim * float32


def test_a_misspelt_chunk_option_stops_the_start(resolve: Resolve, tmp_path: Path) -> None:
    """E34."""
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        "base_config: moss_tts_local.yaml\nconnectors: {connector_of_shared_memory: {extra: {codec_chunk_frame: 10}}}\n"
    )

    with pytest.raises(ConfigError, match="did you mean codec_chunk_frames"):
        resolve(overlay)


def test_an_option_without_effect_is_said_once(resolve: Resolve, caplog: pytest.LogCaptureFixture) -> None:
    """MO-02: the talker of this version makes no audio."""
    with caplog.at_level(logging.INFO, logger="omni_models_moss.stream"):
        resolve("moss_tts_local")
        resolve("moss_tts_local", platform="cpu")

    (record,) = [record for record in caplog.records if record.name == "omni_models_moss.stream"]
    assert "stage 0 (moss_tts_local): talker_first_audio has no effect" in record.getMessage()
