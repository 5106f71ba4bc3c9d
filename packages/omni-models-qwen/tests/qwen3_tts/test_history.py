from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.engine

PLAN: dict[str, Any] = {"text_ids": np.array([1, 2], np.int32), "codes": np.zeros((2, 4), np.int32)}


@pytest.fixture
def history() -> Any:
    from omni_models_qwen.qwen3_tts.history import VoicedHistory

    return VoicedHistory(slots=2, positions=8, num_codes=4, hidden=3, text_pad=9)


def test_a_speaker_is_kept_with_its_row(history: Any) -> None:
    history.take(1, {**PLAN, "speaker_row": 1, "speaker": np.ones(3, np.float32)})

    assert history.speaker_row.tolist() == [-1, 1]
    assert history.speaker[1].tolist() == [1, 1, 1]
    assert history.text_ids[1].tolist() == [1, 2, 9, 9, 9, 9, 9, 9]


def test_a_slot_that_is_used_again_has_no_speaker_of_the_request_before(history: Any) -> None:
    history.take(0, {**PLAN, "speaker_row": 1, "speaker": np.ones(3, np.float32)})

    history.take(0, {**PLAN, "speaker_row": -1})

    assert int(history.speaker_row[0]) == -1
