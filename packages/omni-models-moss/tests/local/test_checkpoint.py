from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_moss.local.checkpoint import Checkpoint


@pytest.fixture
def raw(data_folder: Path) -> dict[str, Any]:
    return json.loads((data_folder / "config.json").read_text())


def test_facts_come_from_config_json(data_folder: Path, raw: dict[str, Any]) -> None:
    checkpoint = Checkpoint.read(data_folder)

    assert (checkpoint.im_start, checkpoint.im_end) == (300, 301)
    assert (checkpoint.audio_start, checkpoint.audio_end) == (325, 326)
    assert (checkpoint.user_slot, checkpoint.assistant_slot) == (310, 312)
    assert (checkpoint.num_codes, checkpoint.codebook_size, checkpoint.pad_code) == (12, 1024, 1024)
    assert checkpoint.sample_rate == 48000
    assert Checkpoint.from_config(raw, data_folder) == checkpoint


def test_a_missing_id_is_an_error_that_names_it(raw: dict[str, Any]) -> None:
    del raw["audio_end_token_id"]

    with pytest.raises(ConfigError, match="audio_end_token_id is missing"):
        Checkpoint.from_config(raw, "m")


def test_a_model_with_a_head_for_all_text_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="local_text_head_mode 'full' is not supported"):
        Checkpoint.from_config({**raw, "local_text_head_mode": "full"}, "m")
