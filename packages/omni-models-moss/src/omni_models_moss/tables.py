"""Embeddings of codes: one table for each codebook, held as one, so that a frame is one look-up. Engine core."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CodeTables(nn.Module):
    """Tables of code embeddings.

    Args:
        books: Number of codebooks.
        rows: Rows of each table.
        hidden: Width of a row.
        none: The row of each table that stands for no code; None where no code adds nothing.
    """

    def __init__(self, books: int, rows: int, hidden: int, *, none: int | None = None) -> None:
        super().__init__()
        self.books, self.rows, self._none = books, rows, none
        # Without a row for it in the checkpoint, a last one that stays zero stands for no code.
        self.weight = nn.Parameter(torch.empty(books * rows + (none is None), hidden), requires_grad=False)
        self.register_buffer("offsets", torch.arange(books, dtype=torch.int64) * rows, persistent=False)

    def views(self, name: str) -> dict[str, Tensor]:
        """Return where each table goes, by its name in the checkpoint: `name` with the number of the book in `{}`."""
        return {name.format(book): self.table(book) for book in range(self.books)}

    def table(self, book: int) -> Tensor:
        """Return the table of one codebook [rows, hidden]."""
        return self.weight.data[book * self.rows : (book + 1) * self.rows]

    def finish_loading(self) -> None:
        """Write what no tensor of a checkpoint brings."""
        if self._none is None:
            self.weight.data[-1].zero_()

    def forward(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of frames [..., books] as [..., hidden]; negative codes stand for none."""
        if self._none is None:
            rows = torch.where(codes < 0, self.weight.shape[0] - 1, codes + self.offsets)
        else:
            rows = torch.where(codes < 0, self._none, codes) + self.offsets
        return F.embedding(rows, self.weight).sum(-2)
