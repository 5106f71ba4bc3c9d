"""The chunk policy (TT-15): which sizes payloads have, and what beats what."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from omni_core.modelkit import first_chunk
from omni_models_qwen.qwen3_tts.chunks import Chunker, ChunkPolicy, initial_by_load

FRAME_S = 0.08


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def frames(count: int) -> np.ndarray[Any, Any]:
    return np.zeros((count, 16), np.int32)


def sizes(
    options: dict[str, Any], total: int, *, initial: int | None = None, load: float = 0.0, pace_s: float = 0.02
) -> list[int]:
    """Return the sizes of the payloads of `total` frames that come one by one, and of the one that ends them."""
    clock = Clock()
    chunker = Chunker(ChunkPolicy.read(options, initial), load, FRAME_S, clock)
    made = []
    for _ in range(total):
        clock.now += pace_s
        made.append(chunker.add(frames(1), finished=False))
    made.append(chunker.add(frames(0), finished=True))
    return [len(payload) for payload in made if payload is not None]


@pytest.mark.parametrize(
    ("options", "initial", "expected"),
    [
        ({}, None, [1, 25, 24]),
        ({"initial_codec_chunk_frames": 4}, None, [4, 25, 21]),
        ({"initial_codec_chunk_frames": 4}, 2, [2, 25, 23]),
        ({"initial_codec_chunk_frames": 4}, 0, [1, 25, 24]),
        ({"codec_chunk_frames": 10, "initial_codec_chunk_frames": 30}, None, [10, 10, 10, 10, 10, 0]),
        ({"codec_chunk_ramp": [2, 4, 8]}, 3, [2, 4, 8, 25, 11]),
        ({"codec_chunk_ramp": "2, 4,8", "initial_codec_chunk_frames": 1}, None, [2, 4, 8, 25, 11]),
        ({"codec_chunk_ramp": [2], "initial_codec_chunk_frames": 5}, None, [5, 25, 20]),
        ({"codec_streaming": False}, None, [50]),
    ],
    ids=[
        "by load",
        "configured",
        "request beats configured",
        "request leaves it to the load",
        "clamped",
        "ramp beats both",
        "text",
        "bad ramp is off",
        "no streaming",
    ],
)
def test_first_payloads_may_be_smaller(options: dict[str, Any], initial: int | None, expected: list[int]) -> None:
    """TT-15."""
    assert sizes(options, 50, initial=initial) == expected


@pytest.mark.parametrize(
    ("load", "steady", "expected"),
    [
        (0.0, 25, 1),
        (0.19, 25, 1),
        (0.2, 25, 2),
        (0.5, 25, 4),
        (0.79, 25, 8),
        (0.8, 25, 16),
        (1.0, 25, 16),
        (3.0, 25, 16),
        (1.0, 1, 1),
        (1.0, 8, 8),
        (0.5, 15, 4),
    ],
)
def test_first_payload_by_load_is_a_power_of_two(load: float, steady: int, expected: int) -> None:
    """TT-15: active / max_num_seqs."""
    assert initial_by_load(load, steady) == expected


def test_configured_first_payload_does_not_depend_on_the_load() -> None:
    assert sizes({"initial_codec_chunk_frames": 1}, 26, load=1.0) == [1, 25, 0]
    assert sizes({}, 26, load=1.0) == [16, 10]


def test_request_that_asks_for_more_than_a_payload_is_cut_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=first_chunk.__name__):
        for _ in range(2):
            assert ChunkPolicy.read({"codec_chunk_frames": 10}, 31).initial == 10

    assert caplog.messages == ["a request's initial_codec_chunk_frames 31 is cut to codec_chunk_frames 10 (said once)"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 25), ({"codec_left_context_frames": 72}, 72), ({"codec_left_context_frames": 72, "ref_code_context_frames": 8}, 8)],
)
def test_reference_context_falls_back_to_the_left_context(options: dict[str, Any], expected: int) -> None:
    """TT-08."""
    assert ChunkPolicy.read(options).ref_context == expected


ADAPTIVE = {"codec_chunk_adaptive": True, "initial_codec_chunk_frames": 4}


def test_adaptive_payloads_grow_by_a_step_while_the_talker_is_fast() -> None:
    """TT-15: at a quarter of real time the sound left grows, and the bound of each step decides."""
    assert sizes(ADAPTIVE, 54) == [4, 6, 8, 10, 12, 14, 0]
    assert sizes({**ADAPTIVE, "codec_chunk_ramp_delta_min": 1, "codec_chunk_ramp_divisor": 5}, 27) == [4, 9, 14, 0]
    assert sizes({**ADAPTIVE, "codec_chunk_frames": 7}, 24) == [4, 6, 7, 7, 0]


def test_adaptive_payloads_stay_small_while_the_talker_is_slow() -> None:
    """At real time they keep what the first one gave; below it they end at the least size."""
    assert sizes(ADAPTIVE, 13, pace_s=FRAME_S) == [4, 3, 3, 3, 0]
    assert sizes(ADAPTIVE, 12, pace_s=2 * FRAME_S) == [4, 2, 2, 2, 2, 0]
    assert sizes({**ADAPTIVE, "codec_chunk_min_frames": 3}, 13, pace_s=2 * FRAME_S) == [4, 3, 3, 3, 0]


def test_margin_makes_adaptive_payloads_leave_earlier() -> None:
    generous = {**ADAPTIVE, "codec_chunk_ramp_delta_min": 25}

    assert sizes(generous, 60, pace_s=0.04)[1] > sizes({**generous, "codec_chunk_safety_margin_ms": 200}, 60, pace_s=0.04)[1]


def test_adaptive_beats_a_ramp_and_keeps_the_requests_first_payload() -> None:
    """TT-15."""
    assert sizes({**ADAPTIVE, "codec_chunk_ramp": [9, 9]}, 10) == [4, 6, 0]
    assert sizes({**ADAPTIVE, "codec_chunk_ramp": [9, 9]}, 10, initial=2) == [2, 4, 4]


def test_listener_of_adaptive_payloads_always_has_sound_left() -> None:
    """A talker at half of real time: when a payload leaves, the one before it is still being heard."""
    clock, pace_s = Clock(), 0.04
    chunker = Chunker(ChunkPolicy.read({"codec_chunk_adaptive": True, "initial_codec_chunk_frames": 4}), 0.0, FRAME_S, clock)
    heard_until = None

    for _ in range(400):
        clock.now += pace_s
        if (payload := chunker.add(frames(1), finished=False)) is not None:
            assert heard_until is None or clock.now < heard_until
            heard_until = (heard_until or clock.now) + len(payload) * FRAME_S

    assert chunker.sent < 60


def test_frames_that_come_together_leave_together() -> None:
    chunker = Chunker(ChunkPolicy.read({"codec_chunk_frames": 4}), 0.0)

    made = chunker.add(frames(11), finished=False)

    assert made is not None
    assert len(made) == 11
