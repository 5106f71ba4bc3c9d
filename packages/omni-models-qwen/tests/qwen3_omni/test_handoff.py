from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.qwen3_omni.handoff import thinker2talker, thinker2talker_async_chunk


@pytest.fixture
def handoff() -> Handoff:
    return Handoff("r", {}, {})


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def test_new_rows_are_handed_on_with_their_token_ids(handoff: Handoff) -> None:
    output = StageOutput(tensors={"embeddings": rows(3), "hidden": rows(3) + 1}, token_ids=[7])

    payload = thinker2talker_async_chunk(handoff, output)

    assert payload is not None
    assert np.array_equal(payload["embeddings"], rows(3))
    assert np.array_equal(payload["hidden"], rows(3) + 1)
    assert payload["token_ids"].tolist() == [7]
    assert payload["token_ids"].dtype == np.int64


def test_nothing_is_handed_on_before_there_is_a_row(handoff: Handoff) -> None:
    assert thinker2talker_async_chunk(handoff, StageOutput(tensors={"hidden": rows(0)})) is None


def test_the_end_is_handed_on_without_rows(handoff: Handoff) -> None:
    assert thinker2talker_async_chunk(handoff, StageOutput(finished=True)) == {}


def test_a_whole_request_is_handed_on_at_once(handoff: Handoff) -> None:
    payload = thinker2talker(handoff, StageOutput(tensors={"hidden": rows(5)}, token_ids=[1, 2], finished=True))

    assert len(payload["hidden"]) == 5
    assert payload["token_ids"].tolist() == [1, 2]
