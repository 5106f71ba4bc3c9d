"""`omni config lint`: one case for each check, and the exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

STAGES = "stages: [{stage_id: 0, devices: '0', gpu_memory_utilization: 0.5}]"
SHM = "{name: SharedMemoryConnector, extra: {decode_batch_max_size: 4, decode_cudagraph_batch_sizes: [1, 2]}}"
CASES = {
    "unused connector": (
        "connectors: {shm: {name: SharedMemoryConnector}}",
        "my.yaml:1:14: warning: no edge uses the connector 'shm'",
    ),
    "unknown platform": (
        "platforms: {cudda: {model_runner: v1}}",
        "my.yaml:1:13: warning: no platform is called cudda, so this section never applies",
    ),
    "empty platform": ("platforms: {npu: {}}", "my.yaml:1:13: warning: the section of npu is empty"),
    "memory": (
        "stages: [{stage_id: 0, devices: '0', gpu_memory_utilization: 0.6}, "
        "{stage_id: 1, devices: '1,0', tensor_parallel_size: 2, gpu_memory_utilization: 0.5}]",
        "my.yaml:1:147: warning: device 0: gpu_memory_utilization adds up to 1.1 "
        "(0.6 of stage 0 (thinker) + 0.5 of stage 1 (talker))",
    ),
    "memory by the engine's default": (
        "stages: [{stage_id: 1, gpu_memory_utilization: 0.5}]",
        "my.yaml:1:48: warning: device 0: gpu_memory_utilization adds up to 1.42 "
        "(0.92 of stage 0 (thinker) + 0.5 of stage 1 (talker))",
    ),
    "graph buckets": (
        f"connectors: {{shm: {SHM}}}\nstages: [{{stage_id: 1, output_connectors: {{to_stage_2: shm}}}}, "
        "{stage_id: 2, max_num_seqs: 2}]",
        "my.yaml:1:80: warning: the largest graph of stage 2 (vocoder) is for 2 requests, but decode_batch_max_size is 4",
    ),
    "decoder's batch": (
        f"connectors: {{shm: {SHM}}}\nstages: [{{stage_id: 1, output_connectors: {{to_stage_2: shm}}}}, "
        "{stage_id: 2, max_num_seqs: 2}]",
        "my.yaml:1:80: warning: decode_batch_max_size is 4, but stage 2 (vocoder) runs 2 requests at most (max_num_seqs)",
    ),
    "graphs of an eager stage": (
        "stages: [{stage_id: 0, enforce_eager: true, compilation_config: {cudagraph_mode: FULL}}]",
        "my.yaml:1:82: warning: stage 0 (thinker): compilation_config.cudagraph_mode has no effect with enforce_eager",
    ),
    "no effect": (
        "base_config: bundle/fake.yaml\nstages: [{stage_id: 1, max_num_seqs: 16}]",
        "my.yaml:2:38: warning: stage 1: max_num_seqs repeats 16 of base YAML bundle/fake.yaml:8:19",
    ),
    "fixed by the pipeline": (
        "stages: [{stage_id: 0, default_sampling_params: {detokenize: false}}]",
        "my.yaml:1:62: warning: stage 0: sampling.detokenize has no effect: the pipeline fixes true",
    ),
    "overlay below a platform section": (
        "base_config: below.yaml\nstages: [{stage_id: 0, max_num_seqs: 4}]",
        "my.yaml:2:38: warning: stage 0: max_num_seqs has no effect on cuda: the platform section sets 2",
    ),
    "MPS that cannot be used": (
        "cuda_mps: true\nstages: [{stage_id: 0, devices: '0,1', tensor_parallel_size: 2}]",
        "my.yaml:1:11: warning: cuda_mps has no effect: ",
    ),
    "what resolving warns of": (
        "async_chunk: false\nstages: [{stage_id: 0, async_chunk: true}]",
        "async_chunk of stage 0 has no effect",
    ),
}


@pytest.fixture(autouse=True)
def below(config: Any, tmp_path: Path) -> None:
    (tmp_path / "below.yaml").write_text("platforms: {cuda: {stages: [{stage_id: 0, max_num_seqs: 2}]}}")


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_lint_finds(config: Any, tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "my.yaml").write_text(text)

    result = config("lint", "MODEL", "--deploy-config", "my.yaml")

    assert result.code == 0
    assert expected in result.out
    assert config("lint", "MODEL", "--deploy-config", "my.yaml", "--strict").code == 1


@pytest.mark.parametrize(
    "text",
    [
        STAGES,
        "stages: [{stage_id: 0, kv_cache_memory_bytes: 1000}, {stage_id: 1, gpu_memory_utilization: 0.9}]",
        "platforms: {npu: {model_runner: v1}, musa: {model_runner: v1}}\n" + STAGES.replace("0.5", "0.05"),
    ],
    ids=["one stage", "bytes instead of a share", "platforms of others"],
)
def test_lint_is_silent_about_what_is_in_order(config: Any, tmp_path: Path, text: str) -> None:
    quiet = "{stage_id: 1, devices: '1'}"
    (tmp_path / "my.yaml").write_text(text if "stage_id: 1" in text else text.replace("}]", f"}}, {quiet}]", 1))

    result = config("lint", "MODEL", "--deploy-config", "my.yaml", "--strict")

    assert (result.out, result.code) == ("MODEL: nothing is wrong\n", 0)


def test_parallelism_that_is_broadcast_is_pointed_out(config: Any) -> None:
    result = config("lint", "MODEL", "--tensor-parallel-size", "2")

    assert "--tensor-parallel-size: warning: --tensor-parallel-size 2 is given to 3 stages" in result.out
    assert """--stage-overrides '{"0": {"tensor_parallel_size": 2}}'""" in result.out


def test_error_is_2_with_its_place_and_way_out(config: Any, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("stages: [{stage_id: 0, max_num_seq: 4}]")

    result = config("lint", "MODEL", "--deploy-config", "my.yaml", "--json")

    assert result.code == 2
    (finding,) = result.json["MODEL"]
    assert (finding["level"], finding["where"]) == ("error", "my.yaml:1:24")
    assert finding["hint"] == "did you mean 'max_num_seqs'?"


def test_files_are_checked_for_the_pipeline_that_they_are_for(config: Any, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("pipeline: fake\nstages: [{stage_id: 0, devices: '0'}, {stage_id: 1, devices: '1'}]")
    (tmp_path / "bad.yaml").write_text("base_config: bundle/fake.yaml\nstages: [{stage_id: 9}]")

    result = config("lint", "good.yaml", "bad.yaml", "fake.yaml")

    assert result.code == 2
    assert "good.yaml: nothing is wrong" in result.out
    assert "pipeline 'fake' has no stage 9" in result.out
    assert "fake.yaml:7:29: warning: device 0: gpu_memory_utilization adds up to 1.6" in result.out


def test_file_without_a_pipeline_says_how_to_name_one(config: Any, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("async_chunk: true")

    result = config("lint", "my.yaml")

    assert result.code == 2
    assert "nothing says which pipeline my.yaml is for" in result.out


def test_model_beside_a_file_is_refused(config: Any) -> None:
    result = config("lint", "MODEL", "fake.yaml")

    assert result.code == 2
    assert "only one model can be checked at a time" in result.err
