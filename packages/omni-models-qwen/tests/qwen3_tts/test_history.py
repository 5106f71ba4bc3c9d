from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

PAD = 9


@pytest.fixture
def history() -> Any:
    from omni_models_qwen.qwen3_tts.history import RowHistory

    return RowHistory(slots=2, positions=8, num_codes=4, hidden=3, text_pad=PAD)


def _inputs(text: list[int], rows: int, **more: Any) -> dict[str, Any]:
    codes = np.arange(rows * 4, dtype=np.int32).reshape(rows, 4)
    codes.flags.writeable = False  # as it comes from another process
    return {"text_ids": np.array(text, dtype=np.int32), "codes": codes, "speaker_row": -1, **more}


def test_text_after_its_end_is_pad(history: Any) -> None:
    history.begin(1, _inputs([1, 2, 3], 2))

    assert history.text_ids[1].tolist() == [1, 2, 3, PAD, PAD, PAD, PAD, PAD]
    assert history.codes[1, :2].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_slot_that_is_used_again_has_nothing_of_the_request_before(history: Any) -> None:
    speaker = np.ones(3, dtype=np.float32)
    history.begin(0, _inputs([1, 2, 3, 4, 5], 2, speaker=speaker) | {"speaker_row": 1})

    history.begin(0, _inputs([6], 1))

    assert history.text_ids[0].tolist() == [6] + [PAD] * 7
    assert int(history.speaker_row[0]) == -1


def test_text_that_can_never_be_reached_is_left_out(history: Any) -> None:
    history.begin(0, _inputs(list(range(20)), 2))

    assert history.text_ids[0].tolist() == list(range(8))


def test_frames_are_kept_where_they_are_read(history: Any) -> None:
    frames = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])

    history.record(torch.tensor([0, 1]), torch.tensor([3, 7]), frames)

    assert history.codes[0, 3].tolist() == [1, 2, 3, 4]
    assert history.codes[1, 7].tolist() == [5, 6, 7, 8]
    assert (history.codes[0, 4:] == -1).all()
