from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_omni.checkpoint import Checkpoint


@pytest.fixture
def config(omni_folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((omni_folder / "config.json").read_text())
    return found


def read(config: dict[str, Any], folder: Path) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint.read(folder)


def test_ids_are_the_checkpoints(omni_folder: Path, config: dict[str, Any]) -> None:
    found = Checkpoint.read(omni_folder)

    assert found.text.im_start == config["im_start_token_id"] == 300
    assert found.text.media == (311, 312, 331)
    assert found.codec.eos == 2150
    assert found.accept_hidden_layer == 2
    assert (found.thinker_width, found.num_codes, found.merge_size) == (64, 16, 2)


def test_voices_are_matched_without_case_and_ethan_is_the_default(omni_folder: Path) -> None:
    found = Checkpoint.read(omni_folder)

    assert found.voice_id("CHELSIE") == found.voice_id("chelsie") == 2301
    assert found.voice_id(None) == found.voice_id("Ethan") == 2302
    assert found.voice_id("nobody") is None


def test_a_checkpoint_without_ethan_speaks_with_its_first_voice(config: dict[str, Any], tmp_path: Path) -> None:
    config["talker_config"]["speaker_id"] = {"Cherry": 2310, "Serena": 2311}

    assert read(config, tmp_path).voice_id(None) == 2310


@pytest.mark.parametrize(
    ("name", "message"),
    [("speaker_id", r"talker_config\.speaker_id"), ("codec_bos_id", "codec_bos_id is missing")],
)
def test_a_configuration_that_lacks_a_field_is_an_error_that_names_it(
    config: dict[str, Any], tmp_path: Path, name: str, message: str
) -> None:
    del config["talker_config"][name]

    with pytest.raises(ConfigError, match=message):
        read(config, tmp_path)


def test_a_checkpoint_without_voices_is_an_error(config: dict[str, Any], tmp_path: Path) -> None:
    config["talker_config"]["speaker_id"] = {}

    with pytest.raises(ConfigError, match="speaker_id is empty"):
        read(config, tmp_path)
