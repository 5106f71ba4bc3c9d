"""Which codes a request's frames have had, for repetition penalties. Engine core."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from omni_core.capabilities import MtpSampling
from omni_core.modelkit.history import RowHistory


class SeenCodes(nn.Module):
    """The codes of all frames that a request has made, by slot and codebook.

    Args:
        slots: Number of slots.
        books: Number of codebooks.
        size: Entries of each; codes beyond are none.
    """

    seen: Tensor
    books: Tensor

    def __init__(self, slots: int, books: int, size: int) -> None:
        super().__init__()
        self._size = size
        # One entry more takes what is no code.
        self.register_buffer("seen", torch.zeros((slots, books, size + 1), dtype=torch.bool), persistent=False)
        self.register_buffer("books", torch.arange(books), persistent=False)

    def begin(self, slot: int) -> None:
        """Forget what a slot's last request made."""
        self.seen[slot] = False

    def record(self, slots: Tensor, codes: Tensor) -> None:
        """Add frames [B, books]."""
        self.seen[slots[:, None], self.books, codes.long().clamp_max(self._size)] = True

    def of(self, slots: Tensor, sampling: Sequence[MtpSampling]) -> Tensor | None:
        """Return bool [B, books, size], None where no row has a penalty."""
        return self.seen[slots, :, : self._size] if is_penalised(sampling) else None


def is_penalised(sampling: Sequence[MtpSampling]) -> bool:
    """Return whether a row has a repetition penalty."""
    return any(row.repetition_penalty != 1 for row in sampling)


def recent_codes(
    history: RowHistory, slots: Tensor, positions: Tensor, begins: Tensor, *, window: int, books: slice, size: int
) -> Tensor:
    """Return which codes the last frames before these positions had, bool [B, books, size].

    Args:
        history: Where frames are recorded, each at the position that reads it.
        slots: The requests [B].
        positions: What is to be predicted is read at these positions [B].
        begins: The position that reads each request's first frame [B].
        window: How many frames count.
        books: Which codebooks.
        size: Entries of a codebook.
    """
    back = positions[:, None] - torch.arange(1, window + 1, device=positions.device)
    codes = history.codes[slots[:, None], back.clamp_min(0)][:, :, books].long()
    counts = (back >= begins[:, None])[:, :, None] & (codes >= 0) & (codes < size)
    codes = torch.where(counts, codes, size).transpose(1, 2)
    found = torch.zeros(*codes.shape[:2], size + 1, dtype=torch.bool, device=codes.device)
    return found.scatter_(2, codes, True)[:, :, :size]
