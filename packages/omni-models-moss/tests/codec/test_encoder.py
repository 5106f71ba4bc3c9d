from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.errors import ConfigError
from omni_models_moss.codec.encoder import CodecEncoder

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]

FRAME = 3840


@pytest.fixture(scope="module")
def encoder(tiny_codec: Path) -> CodecEncoder:
    return CodecEncoder.load(tiny_codec)


def sound(samples: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("samples", [FRAME, 5 * FRAME, 35 * FRAME], ids=["one", "five", "thirty-five"])
def test_codes_are_those_of_a_straight_line_implementation(
    samples: int, encoder: CodecEncoder, tiny_codec: Path, straight: Callable[[Path], Any]
) -> None:
    audio = sound(samples)

    codes = encoder(audio)

    assert codes.dtype == torch.int64
    # Thirty-five frames are three pieces, and several windows long at every rate.
    np.testing.assert_array_equal(codes.numpy(), straight(tiny_codec).encode(audio.numpy()))


def test_a_frame_that_is_filled_in_part_is_left_out(encoder: CodecEncoder) -> None:
    audio = sound(4 * FRAME - 1)

    codes = encoder(audio)

    assert codes.shape == (3, 12)
    assert torch.equal(codes, encoder(audio[: 3 * FRAME]))


def test_less_than_a_frame_has_no_codes(encoder: CodecEncoder) -> None:
    assert encoder(sound(FRAME - 1)).shape == (0, 12)


def test_both_channels_are_heard(encoder: CodecEncoder) -> None:
    audio = sound(4 * FRAME)

    assert not torch.equal(encoder(audio), encoder(audio.flip(1)))


def test_a_mono_codec_is_the_same_without_turns(encoder: CodecEncoder, tiny_codec: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_codec / "config.json").read_text(encoding="utf-8"))
    config |= {"number_channels": 1, "sampling_rate": 96000, "downsample_rate": 7680}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.safetensors").symlink_to(tiny_codec / "model.safetensors")
    audio = sound(5 * FRAME)

    assert torch.equal(CodecEncoder.load(tmp_path)(audio.reshape(-1, 1)), encoder(audio))


def test_fewer_levels_are_the_first_ones(encoder: CodecEncoder) -> None:
    audio = sound(6 * FRAME)

    assert torch.equal(encoder(audio, 5), encoder(audio)[:, :5])


def test_more_levels_than_there_are_is_an_error(encoder: CodecEncoder) -> None:
    with pytest.raises(ConfigError, match="the codec has 12 codebooks, not 13"):
        encoder(sound(FRAME), 13)


def test_memory_is_given_back(encoder: CodecEncoder) -> None:
    encoder(sound(40 * FRAME))

    assert encoder._stack.memory.open_streams == 0
