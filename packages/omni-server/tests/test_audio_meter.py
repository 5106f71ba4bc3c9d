"""What a listener hears of an answer, on a clock that the test turns."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_server.audio_meter import AUDIBLE, AudioMeter, first_audible
from omni_server.streaming import ClientGoneError

RATE = 1000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sound(seconds: float, amplitude: float = 0.5) -> np.ndarray[Any, Any]:
    return np.full((round(seconds * RATE), 1), amplitude, np.float32)


def listen(packets: list[tuple[float, np.ndarray[Any, Any]]]) -> Registry:
    """Send packets at their times, seconds from the request's arrival."""
    registry, clock = Registry(), Clock()
    with AudioMeter(registry, "audio", RATE, 100.0, clock) as meter:
        for at, samples in packets:
            clock.now = 100.0 + at
            meter.sent(samples)
    return registry


def test_silence_counts_for_the_first_packet_and_not_for_the_first_sound() -> None:
    """TT-13."""
    registry = listen([(0.2, sound(0.3, 0.0)), (0.4, np.concatenate([sound(0.1, 0.001), sound(0.4)]))])

    assert registry.get(series.FIRST_PACKET_SECONDS, delivery="audio") == pytest.approx(0.2)
    # Packet at 0.2, 0.3 s of silence, then 0.1 s that nobody hears.
    assert registry.get(series.FIRST_AUDIBLE_SECONDS, delivery="audio") == pytest.approx(0.6)
    assert registry.get(series.UNDERRUNS, delivery="audio") == 0


def test_a_player_that_runs_dry_is_heard_later() -> None:
    registry = listen([(0.1, sound(0.2, 0.0)), (0.5, sound(0.1, 0.0)), (0.9, sound(1.0))])

    assert registry.get(series.UNDERRUNS, delivery="audio") == 2
    # Dry from 0.3 to 0.5 and from 0.6 to 0.9.
    assert registry.get(series.UNDERRUN_SECONDS, delivery="audio") == pytest.approx(0.5)
    assert registry.get(series.FIRST_AUDIBLE_SECONDS, delivery="audio") == pytest.approx(0.9)


def test_the_real_time_factor_is_the_time_taken_over_the_audio_made() -> None:
    registry = listen([(0.5, sound(1.0)), (1.0, sound(1.0))])

    assert registry.get(series.REAL_TIME_FACTOR, delivery="audio") == pytest.approx(0.5)
    assert registry.get(series.ANSWERS, delivery="audio", ending="complete") == 1


def test_an_answer_without_audio_has_no_times() -> None:
    registry = listen([(0.5, sound(0.0))])

    assert registry.get(series.ANSWERS, delivery="audio", ending="complete") == 1
    for what in (series.FIRST_PACKET_SECONDS, series.FIRST_AUDIBLE_SECONDS, series.REAL_TIME_FACTOR):
        assert registry.count(what, delivery="audio") == 0


@pytest.mark.parametrize(
    ("error", "ending"),
    [(ClientGoneError(), "aborted"), (asyncio.CancelledError(), "aborted"), (KeyError("x"), "failed")],
    ids=["client gone", "cancelled", "mistake"],
)
def test_an_answer_that_breaks_off_is_not_complete(error: BaseException, ending: str) -> None:
    registry = Registry()

    def answer() -> None:
        with AudioMeter(registry, "sse", RATE, 100.0, Clock()) as meter:
            meter.sent(sound(1.0))
            raise error

    with pytest.raises(type(error)):
        answer()

    assert registry.get(series.ANSWERS, delivery="sse", ending=ending) == 1
    assert registry.count(series.REAL_TIME_FACTOR, delivery="sse") == 0


def test_the_first_audible_sample_may_be_on_any_channel() -> None:
    samples = np.zeros((10, 2), np.float32)
    assert first_audible(samples) is None

    samples[7, 1] = -AUDIBLE
    samples[9, 0] = 1.0

    assert first_audible(samples) == 7
