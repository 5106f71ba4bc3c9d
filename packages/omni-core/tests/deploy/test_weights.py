"""Sizes of weights from headers; the files have no tensors at all."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.weights import Weights, stage_weights
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline
from omni_core.testing.pipelines import fake_pipeline


def write_header(path: Path, **tensors: tuple[str, list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = {name.replace("__", "."): {"dtype": dtype, "shape": shape} for name, (dtype, shape) in tensors.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def pipeline(folder: Path, *topologies: dict[str, Any], engine_args: dict[str, Any] | None = None) -> ResolvedPipeline:
    """Return the fake pipeline with other facts of its stages' topology."""
    resolved = fake_pipeline(engine_args={0: engine_args or {}})
    stages = tuple(
        replace(stage, model=str(folder), topology=replace(stage.topology, **fields))
        for stage, fields in zip(resolved.stages, topologies, strict=True)
    )
    return replace(resolved, stages=stages, model=str(folder))


def test_folder_of_a_stage_is_its_own(tmp_path: Path) -> None:
    write_header(tmp_path / "model.safetensors", a=("BF16", [10, 10]), b=("I64", [2]))
    write_header(tmp_path / "vocoder" / "model.safetensors", c=("F32", [3]))
    resolved = pipeline(tmp_path, {}, {"model_subdir": "vocoder"})

    found = [stage_weights(stage, resolved) for stage in resolved.stages]

    assert found == [Weights(216, "whole checkpoint"), Weights(12, "vocoder/")]


def test_stages_of_one_folder_load_their_part_of_the_names(tmp_path: Path) -> None:
    write_header(tmp_path / "a.safetensors", thinker__w=("BF16", [100]), talker__w=("BF16", [10]), other=("BF16", [1]))
    resolved = pipeline(tmp_path, {"hf_config_name": "thinker_config.text_config"}, {"hf_config_name": "decoder_config"})

    found = [stage_weights(stage, resolved) for stage in resolved.stages]

    assert found == [Weights(200, "thinker.*"), Weights(222, "whole checkpoint")]


def test_a_stage_that_reads_the_whole_configuration_loads_what_the_others_do_not(tmp_path: Path) -> None:
    write_header(tmp_path / "a.safetensors", thinker__w=("BF16", [100]), talker__w=("BF16", [10]), other=("BF16", [1]))
    resolved = pipeline(tmp_path, {}, {"hf_config_name": "talker_config"})

    found = [stage_weights(stage, resolved) for stage in resolved.stages]

    assert found == [Weights(202, "all but talker.*"), Weights(20, "talker.*")]


@pytest.mark.parametrize(("dtype", "expected"), [("float32", 424), ("bfloat16", 224), ("auto", 224), (None, 224)])
def test_dtype_of_the_stage_counts_for_floating_tensors(tmp_path: Path, dtype: str | None, expected: int) -> None:
    write_header(tmp_path / "model.safetensors", a=("BF16", [100]), b=("F8_E4M3", [8]), c=("I64", [2]))
    resolved = pipeline(tmp_path, {}, {"model_subdir": "x"}, engine_args={} if dtype is None else {"dtype": dtype})

    assert stage_weights(resolved.stages[0], resolved).total == expected


def test_index_names_the_files_that_count(tmp_path: Path) -> None:
    write_header(tmp_path / "one.safetensors", a=("F16", [1]))
    write_header(tmp_path / "two.safetensors", b=("F16", [2]))
    write_header(tmp_path / "old.safetensors", c=("F16", [99]))
    index = {"metadata": {"total_size": 7777}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    resolved = pipeline(tmp_path, {}, {"model_subdir": "x"})

    assert stage_weights(resolved.stages[0], resolved).total == 6

    (tmp_path / "two.safetensors").unlink()
    assert stage_weights(resolved.stages[0], resolved) == Weights(7777, "whole checkpoint by its index")


def test_nothing_to_read_is_not_nothing_to_load(tmp_path: Path) -> None:
    resolved = pipeline(tmp_path, {}, {})

    assert stage_weights(resolved.stages[0], resolved) == Weights(None, "no safetensors files")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 8, struct.pack("<Q", 1 << 62), struct.pack("<Q", 4) + b"[12]", struct.pack("<Q", 9) + b'{"a": {}}'],
    ids=["empty", "no header", "endless header", "no object", "no shape"],
)
def test_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    resolved = pipeline(tmp_path, {}, {})

    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        stage_weights(resolved.stages[0], resolved)
