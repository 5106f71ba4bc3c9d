"""What a checkpoint says about itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_qwen.qwen2_5_omni.checkpoint import Checkpoint


def test_ids_and_sizes_come_from_the_configuration(omni_folder: Path) -> None:
    facts = Checkpoint.read(omni_folder)

    assert (facts.codec.pad, facts.codec.bos, facts.codec.eos, facts.codec.mask) == (8292, 8293, 8294, 8296)
    assert facts.codec.ends == (8292, 8294)
    assert (facts.media.image, facts.media.video, facts.media.audio) == (311, 312, 302)
    assert (facts.text_end, facts.text_pad) == (315, 313)
    assert (facts.thinker_width, facts.num_codes) == (128, 8193)


@pytest.mark.parametrize(
    ("version", "options", "expected"),
    [
        ("4.50.0.dev0", None, True),
        (None, None, True),
        ("5.19.0", None, False),
        ("5.19.0", {"codec_opening": True}, True),
        ("4.57.3", {"codec_opening": False}, False),
    ],
)
def test_the_talkers_opening_is_that_of_the_transformers_that_wrote_the_checkpoint(
    omni_folder: Path, tmp_path: Path, version: str | None, options: Any, expected: bool
) -> None:
    config = json.loads((omni_folder / "config.json").read_text())
    config["transformers_version"] = version
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert Checkpoint.read(tmp_path, options).codec_opening is expected


def test_a_missing_field_is_named(omni_folder: Path, tmp_path: Path) -> None:
    config = json.loads((omni_folder / "config.json").read_text())
    del config["talker_config"]["tts_codec_mask_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=r"talker_config\.tts_codec_mask_token_id is missing"):
        Checkpoint.read(tmp_path)
