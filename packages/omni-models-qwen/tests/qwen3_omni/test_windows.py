from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.qwen3_omni.windows import talker2code2wav, talker2code2wav_async_chunk
from omni_models_qwen.qwen3_tts.handoff import CODES

DEPLOY = {"codec_chunk_frames": 25, "initial_codec_chunk_frames": 4}


def frames(first: int, count: int) -> np.ndarray[Any, Any]:
    return np.repeat(np.arange(first, first + count, dtype=np.int32)[:, None], 16, axis=1)


def cut(pieces: list[int], options: dict[str, Any] | None = None, load: float = 0.0) -> list[tuple[list[int], list[int]]]:
    """Return the first codes and the windows of each payload, for frames that come in these pieces; the last one ends."""
    handoff = Handoff("r", {"num_codes": 16}, DEPLOY if options is None else options)
    found, first = [], 0
    for number, count in enumerate(pieces):
        tensors = {CODES: frames(first, count)} if count else {}
        finished = number == len(pieces) - 1
        payload = talker2code2wav_async_chunk(handoff, StageOutput(tensors=tensors, finished=finished, load=load))
        first += count
        if payload is not None:
            assert payload["codes"].shape == (payload["windows"].sum(), 16)
            found.append((payload["codes"][:, 0].tolist(), payload["windows"].tolist()))
    return found


def test_the_first_window_is_small_and_the_last_one_has_what_is_left() -> None:
    sent = cut([1] * 60 + [0])

    assert [sizes for _, sizes in sent] == [[4], [25], [25], [6]]
    assert [code for codes, _ in sent for code in codes] == list(range(60))


def test_windows_do_not_depend_on_how_frames_come_together() -> None:
    chance = random.Random(0)
    for _ in range(50):
        pieces, left = [], 143
        while left:
            pieces.append(min(chance.randint(0, 40), left))
            left -= pieces[-1]
        sent = cut([*pieces, 0])

        assert [size for _, sizes in sent for size in sizes] == [4, 25, 25, 25, 25, 25, 14]
        assert [code for codes, _ in sent for code in codes] == list(range(143))


def test_windows_that_are_complete_leave_although_more_frames_came() -> None:
    assert [sizes for _, sizes in cut([30, 24, 1])] == [[4, 25], [25], [1]]


def test_a_talker_without_a_frame_still_says_that_it_ended() -> None:
    assert cut([0]) == [([], [])]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"codec_chunk_frames": 10, "codec_chunk_ramp": [2, 3, 5]}, [[2], [3], [5], [10], [10], [1]]),
        ({**DEPLOY, "codec_streaming": False}, [[4, 25, 2]]),
        ({"codec_chunk_frames": 16, "initial_codec_chunk_frames": 0}, [[16], [15]]),
    ],
    ids=["ramp", "at the end", "by load"],
)
def test_the_edges_options_decide_the_sizes(options: dict[str, Any], sizes: list[list[int]]) -> None:
    assert [found for _, found in cut([1] * 31 + [0], options, load=1.0)] == sizes


def test_a_whole_reply_leaves_its_windows_to_the_decoder() -> None:
    handoff = Handoff("r", {"num_codes": 16}, DEPLOY)

    payload = talker2code2wav(handoff, StageOutput(tensors={CODES: frames(0, 70)}, finished=True))

    assert list(payload) == ["codes"]
    assert len(payload["codes"]) == 70
