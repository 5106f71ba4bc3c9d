from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import read_json
from omni_core.modelkit.weights import TensorReader, read_header

pytestmark = pytest.mark.engine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(
        {"a.x": torch.ones(2, 3, dtype=torch.bfloat16), "a.y": torch.zeros(4), "b.z": torch.zeros(1)},
        tmp_path / "model.safetensors",
    )
    return tmp_path


def test_tensors_are_read_in_float32(folder: Path) -> None:
    reader = TensorReader.of_folder(folder, "a.")

    found = reader.take("x", 2, 3)

    assert reader.names == ("x", "y")
    assert found.dtype == torch.float32
    assert found.sum() == 6


def test_a_missing_tensor_is_named_with_its_file(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks the tensor a\.w") as error:
        TensorReader.of_folder(folder, "a.").take("w", 2)

    assert error.value.where == str(folder / "model.safetensors")


def test_a_shape_that_differs_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.y has the shape \[4\] instead of \[5\]"):
        TensorReader.of_folder(folder, "a.").take("y", 5)


def test_tensors_that_nobody_takes_are_refused(folder: Path) -> None:
    reader = TensorReader.of_folder(folder, "a.")
    reader.take("x", 2, 3)

    with pytest.raises(ConfigError, match=r"does not know: a\.y"):
        reader.finish()
    reader.skip("y")
    reader.finish()


@pytest.mark.parametrize("kept", [0, 5, 60, -1], ids=["empty", "in the length", "in the header", "in the data"])
def test_a_file_cut_short_is_noticed_by_its_header(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(ConfigError, match=r"model\.safetensors is cut short or damaged") as error:
        read_header(path)
    assert error.value.where == str(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no model\.safetensors"):
        TensorReader.of_folder(tmp_path, "a.")
    with pytest.raises(ConfigError, match=r"cannot read config\.json"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=r"config\.json is not"):
        read_json(tmp_path / "config.json")


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    save_file({"a.x": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"a.y": torch.ones(3), "b.z": torch.ones(1)}, tmp_path / "two.safetensors")
    placed = {"a.x": "one.safetensors", "a.y": "two.safetensors", "b.z": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}), encoding="utf-8")

    reader = TensorReader.of_folder(tmp_path, "a.")

    assert reader.names == ("x", "y")
    assert reader.take("y", 3).sum() == 3
    with pytest.raises(ConfigError, match=r"no tensors c\.\*"):
        TensorReader.of_folder(tmp_path, "c.")
