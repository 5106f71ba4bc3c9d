"""From probabilities to turns: exact times, whatever the pattern."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_duplex.model import TurnDetection
from omni_duplex.vad.endpoint import MIN_SPEECH_MS, SILENCE_MS, Boundary, Endpointer

FRAME = 32


def boundaries(detection: TurnDetection, probabilities: list[float]) -> list[Boundary]:
    endpointer = Endpointer(detection, FRAME)
    return [found for probability in probabilities if (found := endpointer.push(probability)) is not None]


def test_speech_begins_with_its_first_frame_and_ends_where_the_silence_began() -> None:
    found = boundaries(TurnDetection(silence_duration_ms=320), [0.0] * 10 + [0.9] * 20 + [0.0] * 10)

    assert found == [Boundary(True, 320), Boundary(False, 960)]


def test_a_short_sound_is_no_speech() -> None:
    frames = MIN_SPEECH_MS // FRAME

    assert boundaries(TurnDetection(), [0.9] * (frames - 1) + [0.0] * 100) == []
    assert boundaries(TurnDetection(), [0.9] * frames + [0.0] * 100) != []


def test_a_pause_shorter_than_the_silence_asked_for_does_not_end_the_turn() -> None:
    detection = TurnDetection(silence_duration_ms=640)

    found = boundaries(detection, [0.9] * 10 + [0.0] * 19 + [0.9] * 10 + [0.0] * 20)

    assert [boundary.began for boundary in found] == [True, False]


def test_a_probability_between_both_thresholds_keeps_the_turn_open() -> None:
    detection = TurnDetection(threshold=0.5, silence_duration_ms=320)

    assert boundaries(detection, [0.9] * 10 + [0.4] * 100) == [Boundary(True, 0)]


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_an_eager_session_waits_less(eagerness: str) -> None:
    frames = -(-SILENCE_MS[eagerness] // FRAME)
    detection = TurnDetection("semantic_vad", eagerness=eagerness)  # type: ignore[arg-type]

    assert len(boundaries(detection, [0.9] * 10 + [0.0] * (frames - 1))) == 1
    assert len(boundaries(detection, [0.9] * 10 + [0.0] * frames)) == 2


@given(st.lists(st.floats(0, 1), max_size=300), st.integers(50, 1000))
def test_beginnings_and_ends_take_turns_and_times_go_up(probabilities: list[float], silence: int) -> None:
    found = boundaries(TurnDetection(silence_duration_ms=silence), probabilities)

    assert [boundary.began for boundary in found] == [index % 2 == 0 for index in range(len(found))]
    times = [boundary.at_ms for boundary in found]
    assert times == sorted(times)
    assert all(0 <= time <= len(probabilities) * FRAME for time in times)
