from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

PAD = 9


@pytest.fixture
def history() -> Any:
    from omni_core.modelkit.history import RowHistory

    return RowHistory(slots=2, positions=8, num_codes=4, text=PAD)


def _codes(rows: int) -> Any:
    codes = np.arange(rows * 4, dtype=np.int32).reshape(rows, 4)
    codes.flags.writeable = False  # as it comes from another process
    return codes


def test_text_after_its_end_is_the_given_one(history: Any) -> None:
    history.begin(1, [1, 2, 3], _codes(2))

    assert history.text_ids[1].tolist() == [1, 2, 3, PAD, PAD, PAD, PAD, PAD]
    assert history.codes[1, :2].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_slot_that_is_used_again_has_no_text_of_the_request_before(history: Any) -> None:
    history.begin(0, [1, 2, 3, 4, 5], _codes(2))

    history.begin(0, [6], _codes(1))

    assert history.text_ids[0].tolist() == [6] + [PAD] * 7


def test_text_that_can_never_be_reached_is_left_out(history: Any) -> None:
    history.begin(0, list(range(20)), _codes(2))

    assert history.text_ids[0].tolist() == list(range(8))


def test_frames_are_kept_where_they_are_read(history: Any) -> None:
    frames = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])

    history.record(torch.tensor([0, 1]), torch.tensor([3, 7]), frames)

    assert history.codes[0, 3].tolist() == [1, 2, 3, 4]
    assert history.codes[1, 7].tolist() == [5, 6, 7, 8]
    assert (history.codes[0, 4:] == -1).all()


def test_rows_are_read_at_their_slot_and_position(history: Any) -> None:
    history.begin(0, [1, 2, 3], _codes(3))
    history.begin(1, [4, 5, 6], _codes(2))
    slots, positions = torch.tensor([1, 0, 1, 0]), torch.tensor([2, 0, 7, 7])

    assert history.text_at(slots, positions).tolist() == history.text_ids[slots, positions].tolist() == [6, 1, PAD, PAD]
    assert history.codes_at(slots, positions).tolist() == history.codes[slots, positions].tolist()
