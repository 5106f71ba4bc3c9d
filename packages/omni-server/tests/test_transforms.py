"""Sample rate and tempo."""

from __future__ import annotations

import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_server.transforms import Resampler, change_tempo, check_sample_rate, sample_rates


def noise(frames: int, channels: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.3, 0.3, (frames, channels)).astype(np.float32)


@pytest.mark.parametrize(
    ("native", "offered"),
    [(24000, (8000, 24000)), (48000, (8000, 16000, 24000, 48000)), (44100, (44100,))],
)
def test_offered_rates_are_whole_fractions_of_the_native_rate(native: int, offered: tuple[int, ...]) -> None:
    assert sample_rates(native) == offered


@pytest.mark.parametrize("channels", [1, 2])
def test_resampled_stream_equals_the_resampled_whole(channels: int) -> None:
    """B22: an exact third of the length, streamed or not."""
    samples = noise(1920 * 23, channels)
    whole = Resampler(24000, 8000, channels).push(samples, last=True)
    streamed = Resampler(24000, 8000, channels)

    pieces = [streamed.push(samples[start : start + 1000]) for start in range(0, len(samples), 1000)]
    pieces.append(streamed.push(samples[:0], last=True))

    assert np.array_equal(np.concatenate(pieces), whole)
    assert whole.shape == (len(samples) // 3, channels)


def test_resampling_keeps_a_tone_and_removes_what_the_rate_cannot_carry() -> None:
    times = np.arange(24000) / 24000
    low, high = np.sin(2 * np.pi * 1000 * times), np.sin(2 * np.pi * 9000 * times)

    kept = Resampler(24000, 8000, 1).push(low[:, None].astype(np.float32), last=True)
    removed = Resampler(24000, 8000, 1).push(high[:, None].astype(np.float32), last=True)

    assert np.abs(kept[2000:6000, 0] - low[6000:18000:3]).max() < 1e-3
    assert np.abs(removed[2000:6000]).max() < 1e-3


def test_native_rate_passes_through() -> None:
    samples = noise(100, 1)

    assert Resampler(24000, 24000, 1).push(samples) is samples


@pytest.mark.parametrize("rate", [44100, 12000, 1, 96000])
def test_other_rates_are_refused_with_the_list(rate: int) -> None:
    with pytest.raises(RequestError, match="8000, 24000") as caught:
        check_sample_rate(24000, rate)

    assert caught.value.param == "sample_rate"


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.5, 2.0, 4.0])
def test_tempo_changes_the_length_and_not_the_pitch(speed: float, channels: int) -> None:
    times = np.arange(48000) / 24000
    samples = np.repeat(0.4 * np.sin(2 * np.pi * 440 * times)[:, None], channels, axis=1).astype(np.float32)

    changed = change_tempo(samples, 24000, speed)

    assert changed.shape[1] == channels
    assert len(changed) == pytest.approx(48000 / speed, rel=0.03)
    spectrum = np.abs(np.fft.rfft(changed[:, 0] * np.hanning(len(changed))))
    assert spectrum.argmax() * 24000 / len(changed) == pytest.approx(440, abs=5)


def test_speed_of_one_changes_nothing() -> None:
    samples = noise(100, 1)

    assert change_tempo(samples, 24000, 1.0) is samples
