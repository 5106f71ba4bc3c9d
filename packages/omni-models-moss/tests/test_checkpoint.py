"""What all checkpoints of the family say about themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_moss.checkpoint import MossCheckpoint
from omni_models_moss.delay.checkpoint import Checkpoint as DelayCheckpoint
from omni_models_moss.local.checkpoint import Checkpoint as LocalCheckpoint
from omni_models_moss.realtime.checkpoint import Checkpoint as RealtimeCheckpoint


@pytest.mark.parametrize("kind", [DelayCheckpoint, LocalCheckpoint, RealtimeCheckpoint])
def test_a_folder_without_a_config_is_named(kind: type[MossCheckpoint], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read config\.json") as error:
        kind.read(tmp_path)

    assert error.value.where == str(tmp_path / "config.json")
    assert kind.model in error.value.hint


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        ({}, True),
        ({"n_vq": 16}, True),
        ({"n_vq": 1}, False),
        ({"n_vq": 33}, False),
        ({"audio_vocab_size": 512}, False),
        ({"audio_pad_code": 0}, False),
    ],
    ids=["published", "fewer", "too few", "too many", "small codebooks", "another pad"],
)
def test_frames_of_another_form_are_refused(config: dict[str, Any], fits: bool) -> None:
    facts = DelayCheckpoint.from_config(config, "m")

    if fits:
        facts.check_frames(32, least=2)
        return
    with pytest.raises(ConfigError, match=f"frames of {facts.num_codes} codes below {facts.codebook_size}") as error:
        facts.check_frames(32, least=2)
    assert error.value.where == "m/config.json"
    assert "2 to 32 codes below 1024" in error.value.hint


def test_an_id_outside_the_vocabulary_is_named() -> None:
    facts = DelayCheckpoint.from_config({"im_end_token_id": 300}, "m")

    facts.check_ids(301, "im_end")
    with pytest.raises(ConfigError, match="the id 300 of im_end is none of a vocabulary of 300") as error:
        facts.check_ids(300, "im_end")
    assert error.value.where == "m/config.json"
