from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from omni_core.errors import RequestError
from omni_models_qwen.qwen3_tts.checkpoint import Checkpoint
from omni_models_qwen.qwen3_tts.prompt import NO_CODE, PromptTokens, plan_rows

ROLE, TAIL = [7, 8, 9], [90, 91, 92, 93, 94]
TEXT = [*ROLE, 21, 22, 23, *TAIL]


@pytest.fixture
def checkpoint(data_folder: Path) -> Checkpoint:
    return Checkpoint.read(data_folder)


def _first_codes(codes: np.ndarray) -> list[int]:
    assert (codes[:, 1:] == NO_CODE).all()
    return codes[:, 0].tolist()


def test_whole_text_stands_beside_codec_pad(checkpoint: Checkpoint) -> None:
    plan = plan_rows(checkpoint, PromptTokens(TEXT), language_id=2050, voice_id=3061)

    pad, bos, eos = checkpoint.text.tts_pad, checkpoint.text.tts_bos, checkpoint.text.tts_eos
    assert plan.text_ids.tolist() == [*ROLE, pad, pad, pad, pad, pad, bos, 21, 22, 23, eos, pad]
    assert _first_codes(plan.codes) == [
        *[NO_CODE] * 3,
        *(2154, 2156, 2050, 2157, 3061),
        2148,
        *[2148] * 4,
        2149,
    ]
    assert plan.speaker_row == -1


def test_text_that_flows_in_leaves_all_but_its_first_token_for_later(checkpoint: Checkpoint) -> None:
    plan = plan_rows(checkpoint, PromptTokens(TEXT), language_id=None, whole_text=False)

    pad, bos, eos = checkpoint.text.tts_pad, checkpoint.text.tts_bos, checkpoint.text.tts_eos
    assert plan.rows == 8
    assert plan.text_ids.tolist() == [*ROLE, pad, pad, pad, bos, 21, 22, 23, eos]
    assert _first_codes(plan.codes) == [NO_CODE, NO_CODE, NO_CODE, 2155, 2156, 2157, 2148, 2149]


def test_instructions_come_first_as_text_only(checkpoint: Checkpoint) -> None:
    plan = plan_rows(checkpoint, PromptTokens(TEXT, instructions=[1, 2]), language_id=None, whole_text=False)

    assert plan.text_ids[:5].tolist() == [1, 2, *ROLE]
    assert (plan.codes[:5] == NO_CODE).all()


def test_a_speaker_embedding_has_a_row_without_code(checkpoint: Checkpoint) -> None:
    plan = plan_rows(checkpoint, PromptTokens(TEXT), language_id=2050, speaker_embedding=True, whole_text=False)

    assert plan.speaker_row == 7
    assert (plan.codes[7] == NO_CODE).all()
    assert plan.text_ids[7] == checkpoint.text.tts_pad


REFERENCE = [*ROLE, 31, 32, 90, 91]


def test_a_reference_longer_than_the_text_is_filled_up_with_pad(checkpoint: Checkpoint) -> None:
    frames = np.arange(8 * 16).reshape(8, 16)

    plan = plan_rows(
        checkpoint,
        PromptTokens(TEXT, reference=REFERENCE),
        language_id=None,
        speaker_embedding=True,
        reference_codes=frames,
        whole_text=False,
    )

    pad, eos = checkpoint.text.tts_pad, checkpoint.text.tts_eos
    assert plan.text_ids[8:].tolist() == [31, 32, 21, 22, 23, eos, pad, pad, pad]
    assert plan.codes[8].tolist() == [2149, *[NO_CODE] * 15]
    assert (plan.codes[9:] == frames).all()


def test_text_longer_than_the_reference_flows_in_later(checkpoint: Checkpoint) -> None:
    plan = plan_rows(
        checkpoint,
        PromptTokens(TEXT, reference=REFERENCE),
        language_id=None,
        speaker_embedding=True,
        reference_codes=np.zeros((2, 16), dtype=np.int64),
        whole_text=False,
    )

    assert plan.rows == 8 + 3
    assert plan.text_ids[8:].tolist() == [31, 32, 21, 22, 23, checkpoint.text.tts_eos]


def test_whole_text_of_a_clone_comes_before_the_reference(checkpoint: Checkpoint) -> None:
    plan = plan_rows(
        checkpoint,
        PromptTokens(TEXT, reference=REFERENCE),
        language_id=None,
        speaker_embedding=True,
        reference_codes=np.ones((2, 16), dtype=np.int64),
        whole_text=True,
    )

    pad, eos = checkpoint.text.tts_pad, checkpoint.text.tts_eos
    assert plan.text_ids[8:].tolist() == [31, 32, 21, 22, 23, eos, pad, pad, pad]
    assert plan.codes[8:, 0].tolist() == [2148] * 6 + [2149, 1, 1]
    assert len(plan.text_ids) == plan.rows


def test_no_text_is_an_error(checkpoint: Checkpoint) -> None:
    with pytest.raises(RequestError, match="no text"):
        plan_rows(checkpoint, PromptTokens([*ROLE, *TAIL]), language_id=None)
