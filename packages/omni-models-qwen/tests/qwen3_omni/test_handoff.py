from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.qwen3_omni.handoff import thinker2talker, thinker2talker_async_chunk
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN

FACTS = {"prompt_token_ids": np.arange(3), "mm": {"image_grid_thw": np.ones((1, 3), np.int64)}, "voice": "ethan"}


@pytest.fixture
def handoff() -> Handoff:
    return Handoff("r", FACTS, {})


def output(first: int, count: int, *, finished: bool = False) -> StageOutput:
    """Return an output with rows for the positions from `first`; each row holds its position."""
    rows = np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], 4, axis=1)
    tensors: dict[str, Any] = {EMBEDS: rows, HIDDEN: rows + 100} if count else {}
    return StageOutput(tensors=tensors, token_ids=[7], finished=finished)


def test_nothing_leaves_before_the_first_token_of_the_reply_has_a_row(handoff: Handoff) -> None:
    assert thinker2talker_async_chunk(handoff, output(0, 2)) is None
    assert thinker2talker_async_chunk(handoff, output(2, 1)) is None


def test_the_first_payload_has_every_row_so_far_and_the_facts_of_the_prompt(handoff: Handoff) -> None:
    thinker2talker_async_chunk(handoff, output(0, 3))

    payload = thinker2talker_async_chunk(handoff, output(3, 1))

    assert payload is not None
    assert payload[EMBEDS][:, 0].tolist() == [0, 1, 2, 3]
    assert payload[HIDDEN][:, 0].tolist() == [100, 101, 102, 103]
    assert {name: payload[name] for name in FACTS} == FACTS


def test_later_payloads_are_the_rows_of_further_tokens(handoff: Handoff) -> None:
    for made in (output(0, 3), output(3, 1)):
        thinker2talker_async_chunk(handoff, made)

    later = thinker2talker_async_chunk(handoff, output(4, 2))

    assert later is not None
    assert list(later) == ["rows"]
    assert later["rows"][:, 0].tolist() == [4, 5]
    assert thinker2talker_async_chunk(handoff, output(6, 0)) is None
    assert thinker2talker_async_chunk(handoff, output(6, 0, finished=True)) is None


def test_a_reply_that_ends_at_once_leaves_with_the_prompt_alone(handoff: Handoff) -> None:
    payload = thinker2talker_async_chunk(handoff, output(0, 3, finished=True))

    assert payload is not None
    assert len(payload[EMBEDS]) == 3


def test_a_whole_reply_is_one_payload(handoff: Handoff) -> None:
    payload = thinker2talker(handoff, output(0, 5, finished=True))

    assert payload[EMBEDS][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert payload["voice"] == "ethan"
