from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from omni_models_moss.delay.checkpoint import Checkpoint
from omni_models_moss.delay.pattern import aligned, delayed
from omni_models_moss.delay.prompt import make_rows


@pytest.fixture
def checkpoint(tiny: Callable[..., Path]) -> Checkpoint:
    return Checkpoint.read(tiny("moss_tts_delay", "ttsd"))


def _pieces(checkpoint: Checkpoint, text: str, **kwargs: object) -> list[str]:
    pieces: list[str] = []
    make_rows(checkpoint, lambda piece: pieces.append(piece) or [1], text, {}, **kwargs)  # type: ignore[arg-type, func-returns-value]
    return pieces


def test_frames_become_rows_and_frames_again() -> None:
    frames = np.arange(12).reshape(4, 3)

    rows = delayed(frames, 99)

    assert rows.tolist() == [[0, 99, 99], [3, 1, 99], [6, 4, 2], [9, 7, 5], [99, 10, 8], [99, 99, 11]]
    assert np.array_equal(aligned(rows), frames)
    assert aligned(rows[:2]).shape == (0, 3)


def test_text_between_special_tokens_is_one_piece(checkpoint: Checkpoint) -> None:
    frames = np.zeros((2, 16), np.int32)

    assert _pieces(checkpoint, "Hello")[0].startswith("user\n<user_inst>\n- Reference(s):\nNone\n- Instruction:\nNone\n")
    assert _pieces(checkpoint, " ")[0].endswith("- Text:\nNone\n</user_inst>")
    first, second, rest, *_ = _pieces(checkpoint, "Hello", references=[frames, frames])
    assert (first, second) == ("user\n<user_inst>\n- Reference(s):\n[S1]:\n", "\n[S2]:\n")
    assert rest.startswith("\n- Instruction:")


def test_a_recording_to_continue_is_followed_by_nothing(checkpoint: Checkpoint) -> None:
    frames = np.arange(32).reshape(2, 16)

    rows = make_rows(checkpoint, lambda piece: [1], "Hello", {}, continued=frames)

    assert rows.text_ids[-3:].tolist() == [checkpoint.audio_start, checkpoint.gen_slot, checkpoint.gen_slot]
    assert rows.codes[-1].tolist() == [16, 1, *[1024] * 14]


def test_facts_that_config_json_leaves_out_are_the_published_ones() -> None:
    facts = Checkpoint.from_config({"n_vq": 16}, "m")

    assert (facts.num_codes, facts.pad_code, facts.sample_rate) == (16, 1024, 24000)
    assert (facts.audio_start, facts.audio_end, facts.user_slot) == (151652, 151653, 151654)
    assert (facts.gen_slot, facts.delay_slot, facts.im_end) == (151656, 151662, 151645)
