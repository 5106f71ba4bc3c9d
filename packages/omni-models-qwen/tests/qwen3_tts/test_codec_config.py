from __future__ import annotations

from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_tts.codec_config import CodecDecoderConfig
from omni_models_qwen.qwen3_tts.tiny import _CODEC


def changed(**values: Any) -> dict[str, Any]:
    return {**_CODEC, "decoder_config": {**_CODEC["decoder_config"], **values}}


def test_sizes_come_from_the_file() -> None:
    config = CodecDecoderConfig.read(changed(sliding_window=40, rope_theta=500), where="config.json")

    assert (config.sliding_window, config.rope_theta, config.samples_per_frame, config.sample_rate) == (40, 500.0, 1920, 24000)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "decoder_config is missing"),
        (changed(latent_dim=None), r"decoder_config\.latent_dim is missing"),
        (changed(codebook_size="2048"), "codebook_size must be a positive whole number, not '2048'"),
        (changed(rope_theta="fast"), "rope_theta must be a positive number, not 'fast'"),
        (changed(upsample_rates=8), r"decoder_config\.upsample_rates must be of type list"),
        (changed(upsample_rates=[8, 0]), r"upsample_rates must be a list of positive whole numbers, not \[8, 0\]"),
        (changed(upsample_rates=[8, 5]), "decode_upsample_rate is 1920, but the ratios multiply to 160"),
    ],
    ids=["no decoder", "missing", "text", "no number", "no list", "no numbers", "contradiction"],
)
def test_a_config_that_cannot_be_used_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        CodecDecoderConfig.read(raw, where="x/config.json")

    assert error.value.where == "x/config.json"
