"""The delay pattern: codebook k of a frame is k rows behind codebook 0."""

from __future__ import annotations

import numpy as np

from omni_models_moss.rows import Frames


def delayed(frames: Frames, pad: int) -> Frames:
    """Return frames [n, books] as rows [n + books - 1, books], with `pad` where a row has no code."""
    count, books = frames.shape
    rows = np.full((count + books - 1, books), pad, dtype=np.int32)
    for book in range(books):
        rows[book : book + count, book] = frames[:, book]
    return rows


def aligned(rows: Frames) -> Frames:
    """Return the frames [n - books + 1, books] that the rows [n, books] complete: the opposite of `delayed`."""
    books = rows.shape[1]
    count = max(len(rows) - books + 1, 0)
    return np.stack([rows[book : book + count, book] for book in range(books)], axis=1)
