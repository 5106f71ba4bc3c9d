from __future__ import annotations

from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_moss.realtime.checkpoint import Checkpoint


def test_facts_that_config_json_leaves_out_are_the_references() -> None:
    facts = Checkpoint.from_config({"text_pad": 7, "reference_audio_pad": 8}, "m")

    assert (facts.num_codes, facts.vocab_size, facts.codebook_size, facts.pad_code) == (16, 1027, 1024, 1024)
    assert (facts.begin_code, facts.end_code, facts.prefill, facts.window) == (1025, 1026, 12, 50)
    assert (facts.text_pad, facts.reference_pad, facts.sample_rate) == (7, 8, 24000)


@pytest.mark.parametrize(
    "changes",
    [
        {"delay_tokens_len": 0},
        {"repetition_window": -1},
        {"audio_eos_token": 1027},
        {"audio_bos_token": 2000},
        {"audio_bos_token": -1},
        {"audio_eos_token": -7},
    ],
    ids=lambda changes: "-".join(map(str, *changes.items())),
)
def test_values_that_cannot_be_are_refused_where_the_checkpoint_is_read(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(changes.values())))) as error:
        Checkpoint.from_config(changes, "m")

    assert error.value.where == "m/config.json"
