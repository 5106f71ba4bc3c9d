from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.modelkit.tokenizer import TextTokenizer
from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.local.prompt import make_rows
from omni_models_moss.rows import NO_CODE


def test_rows_equal_the_reference(case: Any) -> None:
    checkpoint, request, frames = Checkpoint.read(case.folder), case.record["request"], case.array("ref_codes")
    fields = {**request, "instructions": request.get("instruction")}
    frames_as = {"continued": frames} if case.continues else {"reference": frames}

    rows = make_rows(checkpoint, TextTokenizer.load(case.folder).encode, request["text"], fields, **frames_as)

    expected = case.array("prompt_rows")
    assert rows.text_ids.tolist() == expected[:, 0].tolist() == case.record["prompt_token_ids"]
    assert np.array_equal(np.where(rows.codes == NO_CODE, checkpoint.pad_code, rows.codes), expected[:, 1:])


@pytest.mark.parametrize("value", [None, "", "  "], ids=["missing", "empty", "blank"])
def test_a_field_that_says_nothing_is_none_in_the_form(value: str | None, data_folder: Path) -> None:
    pieces: list[str] = []

    make_rows(
        Checkpoint.read(data_folder), lambda text: pieces.append(text) or [1], "Hello", {"quality": value, "language": "Thai"}
    )

    (form,) = [piece for piece in pieces if "Quality" in piece]
    assert "- Quality:\nNone\n" in form
    assert form.endswith("- Language:\nThai\n- Text:\n")


def test_no_token_spans_two_pieces(data_folder: Path) -> None:
    """The released tokenizer has tokens such as `.` with a line break, which must not swallow the end of the text."""
    pieces: list[str] = []

    make_rows(Checkpoint.read(data_folder), lambda text: pieces.append(text) or [1], "Hello.", {})

    assert pieces[0] == "user\n"
    assert pieces.index("Hello.") + 1 == pieces.index("\n</user_inst>")
    assert pieces[-2:] == ["\n", "assistant\n"]
