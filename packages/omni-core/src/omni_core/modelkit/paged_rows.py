"""Rows of floats that came from another stage, by slot and position, in memory that grows with what arrives. Engine core."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PAGE = 64
"""Rows of a page."""


class PagedRows(nn.Module):
    """Rows [W] of requests, in pages that a slot gets when rows arrive for them and gives back at its end.

    A row for every position of every slot would take gigabytes where a model may run long and for many requests at once.

    Args:
        slots: Number of slots.
        positions: Positions of a slot.
        width: W.
        dtype: Of the rows.
    """

    table: Tensor
    pool: Tensor

    def __init__(self, slots: int, positions: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._positions = positions
        # Page 0 belongs to nobody: what has not arrived reads as zero there.
        self.register_buffer("table", torch.zeros((slots, -(-positions // PAGE)), dtype=torch.int64), persistent=False)
        self.register_buffer("pool", torch.zeros((1, PAGE, width), dtype=dtype), persistent=False)
        self._free: list[int] = []
        self._pages: list[list[int]] = [[] for _ in range(slots)]

    def write(self, slot: int, start: int, rows: Tensor) -> None:
        """Keep rows [n, W] for the positions from `start`; rows past the last position can never be read and are dropped."""
        rows = rows[: max(self._positions - start, 0)]
        if not len(rows):
            return
        end = start + len(rows)
        self._reach(slot, -(-end // PAGE))
        positions = torch.arange(start, end, device=self.pool.device)
        self.pool[self.table[slot, positions // PAGE], positions % PAGE] = rows.to(self.pool.device, self.pool.dtype)

    def read(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return rows [T, W]; of rows that were not written nothing is known."""
        return self.pool[self.table[slots, positions // PAGE], positions % PAGE]

    def end(self, slot: int) -> None:
        """Give a slot's pages back."""
        self._free += self._pages[slot]
        self._pages[slot] = []
        self.table[slot].zero_()

    def _reach(self, slot: int, count: int) -> None:
        """Let a slot have `count` pages."""
        pages = self._pages[slot]
        wanted = count - len(pages)
        if wanted <= 0:
            return
        if wanted > len(self._free):
            self._grow(wanted - len(self._free))
        new = [self._free.pop() for _ in range(wanted)]
        self.table[slot, len(pages) : count] = torch.tensor(new, device=self.table.device)
        pages += new

    def _grow(self, least: int) -> None:
        known = len(self.pool)
        more = max(least, known)  # twice the memory at a time, so that rows are seldom copied
        shape = (more, *self.pool.shape[1:])
        self.pool = torch.cat([self.pool, torch.zeros(shape, dtype=self.pool.dtype, device=self.pool.device)])
        self._free += range(known + more - 1, known - 1, -1)
