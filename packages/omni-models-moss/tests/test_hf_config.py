from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.engine


def _config(raw: dict[str, Any]) -> Any:
    from omni_models_moss.hf_config import MossTTSLocalConfig

    return MossTTSLocalConfig(**raw)


def test_the_text_config_is_the_backbone(data_folder: Path) -> None:
    raw = json.loads((data_folder / "config.json").read_text())

    text = _config(raw).get_text_config()

    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "rms_norm_eps"):
        assert getattr(text, name) == raw["qwen3_config"][name]
    assert text.rope_parameters["rope_theta"] == 1_000_000


def test_the_backbone_may_be_under_its_other_name_only(data_folder: Path) -> None:
    raw = json.loads((data_folder / "config.json").read_text())
    del raw["qwen3_config"]

    assert _config(raw).get_text_config().hidden_size == 64


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}, {"rope_type": "default", "rope_theta": 7e5}),
        (
            {"rope_theta": 1000000, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
            {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024},
        ),
    ],
    ids=["plain", "as transformers 5 writes it", "stretched"],
)
def test_positions_are_turned_as_the_checkpoint_says(rope: dict[str, Any], expected: dict[str, Any], data_folder: Path) -> None:
    raw = json.loads((data_folder / "config.json").read_text())
    backbone = {name: value for name, value in raw["qwen3_config"].items() if not name.startswith("rope_")}

    text = _config({**raw, "qwen3_config": {**backbone, **rope}}).get_text_config()

    assert expected.items() <= text.rope_parameters.items()


def test_a_saved_copy_says_the_same(data_folder: Path, tmp_path: Path) -> None:
    raw = json.loads((data_folder / "config.json").read_text())
    _config(raw).save_pretrained(tmp_path)

    again = _config(json.loads((tmp_path / "config.json").read_text()))

    assert again.get_text_config().to_dict() == _config(raw).get_text_config().to_dict()
    assert again.gpt2_config == raw["gpt2_config"]
