"""What a talker remembers of its requests: for each slot and position, the text and the codes of the row. Engine core."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NO_CODE = -1
"""In a row: nothing is added for this codebook."""


class RowHistory(nn.Module):
    """Ids by (slot, position), on the device. Nothing here depends on the order in which positions are computed.

    Args:
        slots: Number of slots.
        positions: Positions of a slot.
        num_codes: Codes of a row.
        text: Text id of the rows whose text is not given.
    """

    text_ids: Tensor
    codes: Tensor

    def __init__(self, slots: int, positions: int, num_codes: int, text: int) -> None:
        super().__init__()
        self._text = text
        self.keep("text_ids", torch.full((slots, positions), text, dtype=torch.int32))
        self.keep("codes", torch.full((slots, positions, num_codes), NO_CODE, dtype=torch.int32))

    def keep(self, name: str, value: Tensor) -> None:
        """Add a buffer that moves with the model and is no weight of it."""
        self.register_buffer(name, value, persistent=False)

    def begin(self, slot: int, text_ids: Any, codes: Any) -> None:
        """Write a request's rows: `text_ids` [n] and `codes` [m, codes]; the two need not be equally long."""
        positions = self.text_ids.shape[1]
        text = as_tensor(text_ids)[:positions]  # what is past the last position can never be reached
        frames = as_tensor(codes)[:positions]
        self.text_ids[slot].fill_(self._text)
        self.text_ids[slot, : len(text)].copy_(text)
        self.codes[slot, : len(frames)].copy_(frames)

    # One index instead of two, here and below: what these take of a step is a third of what indexing by both does.

    def text_at(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the text ids [T] of rows, int32."""
        return self.text_ids.view(-1).index_select(0, self._places(slots, positions))

    def codes_at(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the codes [T, Q] of rows, int32."""
        return self.codes.view(-1, self.codes.shape[2]).index_select(0, self._places(slots, positions))

    def record(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Write frames [B, Q] at the positions that read them."""
        frames = codes if codes.dtype == self.codes.dtype else codes.to(self.codes.dtype)
        self.codes.view(-1, self.codes.shape[2]).index_copy_(0, self._places(slots, positions), frames)

    def _places(self, slots: Tensor, positions: Tensor) -> Tensor:
        return torch.add(positions, slots, alpha=self.text_ids.shape[1])


def as_tensor(value: Any) -> Tensor:
    """Return a tensor as it is, a copy of an array as one: what crossed a process is read-only, which torch warns about."""
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
