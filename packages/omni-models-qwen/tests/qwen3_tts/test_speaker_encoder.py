from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_tts.speaker_encoder import MelSpectrogram, SpeakerEncoder, SpeakerEncoderConfig

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]


def test_sizes_that_the_file_leaves_out_are_those_of_the_published_models() -> None:
    config = SpeakerEncoderConfig.read({"enc_dim": 2048, "enc_channels": [8, 8, 8, 8, 24], "other": 1}, where="config.json")

    assert (config.enc_dim, config.enc_channels) == (2048, (8, 8, 8, 8, 24))
    assert (config.enc_res2net_scale, config.enc_dilations) == (8, (1, 2, 3, 4, 1))


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="differ in length"):
        SpeakerEncoderConfig.read({"enc_channels": [8, 8]}, where="config.json")


@pytest.mark.parametrize("hertz", [300.0, 1000.0, 5000.0])
def test_a_tone_is_loudest_in_the_band_of_its_pitch(hertz: float) -> None:
    time = torch.arange(24000, dtype=torch.float64) / 24000
    # The mel scale of the filters: linear up to 1 kHz, 15 mel; then logarithmic.
    mel = [hz * 3 / 200 if hz < 1000 else 15 + np.log(hz / 1000) * 27 / np.log(6.4) for hz in (hertz, 12000.0)]

    spectrum = MelSpectrogram(128, 24000)((2 * torch.pi * hertz * time).sin().float())

    assert spectrum.shape == (128, 24000 // 256)
    assert abs(int(spectrum[:, 40].argmax()) - (mel[0] / mel[1] * 129 - 1)) <= 1


def test_silence_has_the_least_level() -> None:
    assert torch.allclose(MelSpectrogram(128, 24000)(torch.zeros(4096)), torch.tensor(1e-5).log(), atol=0.5)


def test_weights_of_another_model_are_refused(tiny_base: Path) -> None:
    raw = json.loads((tiny_base / "config.json").read_text(encoding="utf-8"))["speaker_encoder_config"]

    with pytest.raises(
        ConfigError, match=r"speaker_encoder\.fc\.weight has the shape \[48, 192, 1\] instead of \[64, 192, 1\]"
    ):
        SpeakerEncoder.load(tiny_base, {**raw, "enc_dim": 64})
