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


@pytest.fixture
def data_folder() -> Path:
    return Path(__file__).parent / "data" / "moss-tts-local"


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


def test_a_saved_copy_says_the_same(data_folder: Path, tmp_path: Path) -> None:
    raw = json.loads((data_folder / "config.json").read_text())
    _config(raw).save_pretrained(tmp_path)

    again = _config(json.loads((tmp_path / "config.json").read_text()))

    assert again.get_text_config().to_dict() == _config(raw).get_text_config().to_dict()
    assert again.gpt2_config == raw["gpt2_config"]
