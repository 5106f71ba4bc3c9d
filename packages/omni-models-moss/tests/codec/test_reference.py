from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ConfigError, RequestError
from omni_core.stage import ResolvedStage
from omni_models_moss.reference import ReferenceEncoder, _normalized, resample

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="session")
def encoder_of() -> Callable[[Path], ReferenceEncoder]:
    return cache(ReferenceEncoder.load)


def tone(seconds: float, rate: int = 48000, *, channels: int = 2, level: float = 0.14) -> Array:
    time = np.arange(int(seconds * rate)) / rate
    waves = [np.sin(2 * np.pi * 220 * (k + 1) * time + 0.3 * k) for k in range(channels)]
    return (level * np.stack(waves, axis=1)).astype(np.float32)


def test_a_recording_becomes_the_references_codes(recorded: Any) -> None:
    recording = recorded.recording

    codes = ReferenceEncoder.load(recorded.folder / "audio_tokenizer").encode(recording.samples, recording.sample_rate)

    assert codes.dtype == np.int64
    np.testing.assert_array_equal(codes, recorded.array("ref_codes"))


@pytest.mark.parametrize(("seconds", "frames"), [(1.0, 12), (1.6, 20), (30.0, 375)])
def test_a_frame_is_made_of_80_whole_milliseconds(
    seconds: float, frames: int, tiny_codec: Path, encoder_of: Callable[[Path], ReferenceEncoder]
) -> None:
    codes = encoder_of(tiny_codec).encode(tone(seconds), 48000)

    assert codes.shape == (frames, 12)
    assert 0 <= codes.min() < codes.max() < 1024


def test_mono_is_both_channels(tiny_codec: Path, encoder_of: Callable[[Path], ReferenceEncoder]) -> None:
    encoder, mono = encoder_of(tiny_codec), tone(1.2, channels=1)

    codes = encoder.encode(mono[:, 0], 48000)

    np.testing.assert_array_equal(codes, encoder.encode(np.repeat(mono, 2, axis=1), 48000))
    np.testing.assert_array_equal(codes, encoder.encode(np.repeat(mono, 8, axis=1), 48000))


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 96000, 192000])
def test_any_rate_becomes_the_codecs(rate: int) -> None:
    made = resample(tone(1.0, rate), rate, 48000)

    assert made.shape == (48000, 2)
    middle = slice(4000, 44000)  # the filter needs its neighbours
    np.testing.assert_allclose(made[middle], tone(1.0)[middle], atol=2e-3)


@pytest.mark.parametrize(
    ("before_db", "after_db"),
    [(-20, -20), (-21, -20), (-19.5, -20), (-23, -20), (-30, -27), (-60, -57), (-10, -13)],
)
def test_loudness_nears_20_db_by_3_db_at_most(before_db: float, after_db: float) -> None:
    # A sine's power is half of its peak's square.
    samples = tone(1.0, level=float(np.sqrt(2) * 10 ** (before_db / 20)))

    power = np.mean(np.square(_normalized(samples), dtype=np.float64))

    assert 10 * np.log10(power) == pytest.approx(after_db, abs=0.01)


def test_silence_stays_silent() -> None:
    assert not _normalized(np.zeros((48000, 2), np.float32)).any()


def test_levels_are_those_of_the_talker(tiny_codec: Path) -> None:
    assert ReferenceEncoder.load(tiny_codec, 8).encode(tone(1.0), 48000).shape == (12, 8)


def test_the_codec_of_a_stage_is_found(tiny_codec: Path, tmp_path: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    (tmp_path / "audio_tokenizer").symlink_to(tiny_codec)

    encoder = ReferenceEncoder.load(stage_of(tmp_path, 0))

    assert encoder.encode(tone(1.0), 48000).shape == (12, 12)


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (tone(0.9), 48000, "0.90 s long"),
        (tone(30.1), 48000, "30.10 s long"),
        (np.zeros((2, 48000, 1), np.float32), 48000, r"floats \[n\] or \[n, channels\], not float32 \[2, 48000, 1\]"),
        (np.zeros((48000, 0), np.float32), 48000, r"not float32 \[48000, 0\]"),
        (np.zeros(48000, np.int16), 48000, "not int16"),
        (np.full(48000, np.nan, np.float32), 48000, "not finite"),
        (tone(2), 0, "sample rate 0"),
    ],
    ids=["short", "long", "three axes", "no channels", "integers", "nan", "no rate"],
)
def test_a_recording_that_cannot_be_used_is_refused(
    samples: Array, rate: int, message: str, tiny_codec: Path, encoder_of: Callable[[Path], ReferenceEncoder]
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        encoder_of(tiny_codec).encode(samples, rate)

    assert error.value.param == "ref_audio"


def test_a_folder_without_a_codec_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read config\.json") as error:
        ReferenceEncoder.load(tmp_path)

    assert error.value.where == str(tmp_path / "config.json")
