from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.runner import Handoff, StageOutput
from omni_models_moss.checkpoint import CODEBOOK_SIZE
from omni_models_moss.handoff import (
    CODES,
    delayed_talker2codec,
    delayed_talker2codec_async_chunk,
    talker2codec,
    talker2codec_async_chunk,
)


@pytest.fixture
def handoff() -> Handoff:
    return Handoff("r", {}, {"codec_chunk_frames": 3, "initial_codec_chunk_frames": 1})


def frame(number: int) -> np.ndarray[Any, Any]:
    return np.full((1, 12), number, dtype=np.int64)


def output(number: int | None = None, *, finished: bool = False) -> StageOutput:
    return StageOutput(tensors={} if number is None else {CODES: frame(number)}, finished=finished)


def test_first_frame_goes_at_once_and_later_ones_in_chunks(handoff: Handoff) -> None:
    payloads = [talker2codec_async_chunk(handoff, output(number)) for number in range(7)]

    sent = {index: payload["codes"][:, 0].tolist() for index, payload in enumerate(payloads) if payload is not None}
    assert sent == {0: [0], 3: [1, 2, 3], 6: [4, 5, 6]}
    assert payloads[3] is not None
    assert payloads[3]["codes"].dtype == np.int32


def test_a_request_chooses_the_size_of_its_first_payload() -> None:
    handoff = Handoff("r", {"initial_codec_chunk_frames": 2}, {"codec_chunk_frames": 3})

    payloads = [talker2codec_async_chunk(handoff, output(number)) for number in range(5)]

    assert [None if payload is None else len(payload["codes"]) for payload in payloads] == [None, 2, None, None, 3]


def test_without_streaming_all_frames_go_when_the_talker_has_ended() -> None:
    handoff = Handoff("r", {}, {"codec_chunk_frames": 1, "codec_streaming": False})

    payloads = [talker2codec_async_chunk(handoff, output(number, finished=number == 4)) for number in range(5)]

    assert payloads[:4] == [None] * 4
    assert payloads[4] is not None
    assert payloads[4]["codes"][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_what_is_continued_goes_once_before_the_first_frame() -> None:
    recording = np.arange(24).reshape(2, 12)
    handoff = Handoff("r", {"ref_codes": recording}, {"codec_chunk_frames": 1})

    first, second = (talker2codec_async_chunk(handoff, output(number)) for number in range(2))
    whole = talker2codec(handoff, output(0, finished=True))

    assert first is not None
    assert second is not None
    assert np.array_equal(first["ref_codes"], recording)
    assert "ref_codes" not in second
    assert np.array_equal(whole["ref_codes"], recording)


def test_what_is_left_goes_with_the_end(handoff: Handoff) -> None:
    talker2codec_async_chunk(handoff, output(0))
    assert talker2codec_async_chunk(handoff, output(1)) is None

    payload = talker2codec_async_chunk(handoff, output(finished=True))

    assert payload is not None
    assert payload["codes"][:, 0].tolist() == [1]


def test_the_end_without_frames_is_an_empty_payload(handoff: Handoff) -> None:
    assert talker2codec_async_chunk(handoff, output(finished=True)) == {}
    assert talker2codec(handoff, output(finished=True)) == {}


def test_a_whole_request_is_one_payload(handoff: Handoff) -> None:
    codes = np.concatenate([frame(number) for number in range(5)])

    payload = talker2codec(handoff, StageOutput(tensors={CODES: codes}, finished=True))

    assert payload["codes"].shape == (5, 12)


def delayed(frames: np.ndarray[Any, Any], *, silent_rows: int = 2) -> np.ndarray[Any, Any]:
    """Return the rows that a talker of the delay pattern makes of frames, with rows of pads around them."""
    count, books = frames.shape
    rows = np.full((count + books - 1, books), CODEBOOK_SIZE)
    for book in range(books):
        rows[book : book + count, book] = frames[:, book]
    silence = np.full((silent_rows, books), CODEBOOK_SIZE)
    return np.concatenate([silence, rows, silence])


@pytest.fixture
def speech() -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(0, CODEBOOK_SIZE, (11, 4))


def test_delayed_rows_of_a_whole_request_become_its_frames(handoff: Handoff, speech: np.ndarray[Any, Any]) -> None:
    payload = delayed_talker2codec(handoff, StageOutput(tensors={CODES: delayed(speech)}, finished=True))

    assert np.array_equal(payload["codes"], speech)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_delayed_rows_in_any_portions_become_the_same_frames_in_chunks(
    step: int, handoff: Handoff, speech: np.ndarray[Any, Any]
) -> None:
    rows = delayed(speech)
    portions = [rows[first : first + step] for first in range(0, len(rows), step)]
    outputs = [StageOutput(tensors={CODES: portion}) for portion in portions] + [StageOutput(finished=True)]

    payloads = [payload for output in outputs if (payload := delayed_talker2codec_async_chunk(handoff, output))]

    assert np.array_equal(np.concatenate([payload["codes"] for payload in payloads]), speech)
    if step == 1:
        assert [len(payload["codes"]) for payload in payloads] == [1, 3, 3, 3, 1]


def test_delayed_talker_that_says_nothing_ends_with_an_empty_payload(handoff: Handoff) -> None:
    silence = StageOutput(tensors={CODES: np.full((6, 4), CODEBOOK_SIZE)})

    assert delayed_talker2codec_async_chunk(handoff, silence) is None
    assert delayed_talker2codec_async_chunk(handoff, StageOutput(finished=True)) == {}
    assert delayed_talker2codec(handoff, StageOutput(finished=True)) == {}
