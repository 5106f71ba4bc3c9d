"""A talker's prompt as rows: a text id, and beside it the codes of a frame or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Frames = np.ndarray[Any, Any]
Encode = Callable[[str], Sequence[int]]
"""Turns a piece of text into ids, nothing added."""

NO_CODE = -1
"""In a row: nothing is there for this codebook (`modelkit.history.NO_CODE`, which needs torch)."""


@dataclass(frozen=True)
class Rows:
    """The rows of a prompt."""

    text_ids: np.ndarray[Any, np.dtype[np.int32]]
    """[rows]."""
    codes: np.ndarray[Any, np.dtype[np.int32]]
    """[rows, codebooks], NO_CODE in rows without a frame."""


class RowBuilder:
    """Rows as they are written.

    Args:
        num_codes: Codes of a row.
    """

    def __init__(self, num_codes: int) -> None:
        self._num_codes = num_codes
        self._text: list[int] = []
        self._codes: list[Frames] = []

    def add(self, ids: Iterable[int]) -> None:
        """Add a row for each text id."""
        before = len(self._text)
        self._text += ids
        self._codes.append(np.full((len(self._text) - before, self._num_codes), NO_CODE, np.int32))

    def add_frames(self, slot: int, frames: Frames) -> None:
        """Add a row for each of the frames [n, codes], with a text id that stands for a frame."""
        self._text += [slot] * len(frames)
        self._codes.append(np.asarray(frames, np.int32))

    def finish(self) -> Rows:
        """Return the rows."""
        return Rows(np.asarray(self._text, np.int32), np.concatenate(self._codes))
