"""What sessions leave behind in a network: keys and values, ends of convolutions. Each session has a slot in shared tensors.

A step always computes every slot, also those that have nothing to do, whose results and states are dropped. So its shapes never
change: a session's numbers do not depend on who else is there, bit by bit, and a device can replay one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from omni_core.errors import OverloadedError


class SlotTable:
    """Which slots are taken.

    Args:
        count: How many sessions there can be.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))

    def take(self) -> int:
        """Return the lowest free slot.

        Raises:
            OverloadedError: None is free.
        """
        if not self._free:
            raise OverloadedError(f"all {self.count} sessions of this replica are taken", hint="open a new connection later")
        self._free.sort()
        return self._free.pop(0)

    def give_back(self, slot: int) -> None:
        """Make a slot free."""
        self._free.append(slot)


class Rows:
    """The slots that a step is for.

    Args:
        slots: Their numbers, each one once.
        count: How many slots there are.
        device: Where the step is computed.
    """

    def __init__(self, slots: Sequence[int], count: int, device: torch.device) -> None:
        self.slots = tuple(slots)
        self.index = torch.tensor(self.slots, dtype=torch.int64, device=device)
        self.mask = torch.zeros(count, dtype=torch.bool, device=device)
        self.mask[self.index] = True


class KeyValues:
    """Keys and values of the last `window` positions of every slot, in the place where transformers looks for a cache.

    Args:
        layers: Of the network.
        slots: How many sessions.
        heads: Heads of the keys.
        head_dim: Size of each.
        window: Positions that a query sees, its own among them.
        count: Positions that a step adds.
        device: Where they are.
        dtype: Type of the numbers.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        heads: int,
        head_dim: int,
        window: int,
        count: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.window = window
        self._count = count
        self._size = window + count - 1  # the first of a step's queries still sees its oldest key
        shape = (slots, heads, self._size, head_dim)
        self._keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self._values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self._seen = torch.zeros(slots, dtype=torch.int64, device=device)
        self._steps = torch.arange(count, device=device)
        self._places = torch.arange(self._size, device=device)
        self._rows: Rows
        self._written: Tensor

    def begin(self, slot: int) -> None:
        """Forget what a slot holds; what is left in the tensors is never looked at."""
        self._seen[slot] = 0

    def open(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Begin a step and return its positions [slots, count] and what each query sees, bool [slots, 1, count, places]."""
        self._rows = rows
        positions = self._seen[:, None] + self._steps
        self._written = positions[rows.index] % self._size
        last = positions[:, -1:]
        held = last - (last - self._places) % self._size
        distance = positions[:, :, None] - held[:, None, :]
        seen = (held >= 0)[:, None, :] & (distance >= 0) & (distance < self.window)
        return positions, (seen | ~rows.mask[:, None, None])[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add a layer's keys and values [slots, heads, count, head_dim]; return all that it holds."""
        rows = self._rows.index
        for held, new in ((self._keys[layer], keys), (self._values[layer], values)):
            held[rows[:, None], :, self._written] = new[rows].transpose(1, 2)
        return self._keys[layer], self._values[layer]

    def close(self) -> None:
        """End a step."""
        self._seen += self._rows.mask * self._count

    def prefilled(self, slot: int, length: int) -> Prefill:
        """Return what takes the first `length` positions of a slot at once, at most `window`."""
        assert 0 < length <= self.window, "the caller bounds prompts"
        self._seen[slot] = length
        return Prefill(self._keys, self._values, slot)


class Prefill:
    """The first positions of one slot, computed at once: they see each other and nothing else."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], slot: int) -> None:
        self._keys = keys
        self._values = values
        self._slot = slot

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values [1, heads, length, head_dim] and return them."""
        length = keys.shape[2]
        self._keys[layer][self._slot, :, :length] = keys[0]
        self._values[layer][self._slot, :, :length] = values[0]
        return keys, values


class Ends:
    """The ends of what convolutions have seen or made, for the next step; `update` is what transformers calls."""

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}
        self._paddings: dict[int, tuple[int, bool]] = {}
        self._rows: Rows
        self._fresh: Tensor | None = None

    def expect(self, layer: int, padding: int, *, replicates: bool = False) -> None:
        """Note that a convolution looks back `padding` samples: before the first one at zeros, or at copies of it."""
        self._paddings[layer] = padding, replicates

    def begin(self, slot: int) -> None:
        """Forget what a slot holds."""
        for held in self._held.values():
            held[slot] = 0
        if self._fresh is not None:
            self._fresh[slot] = True

    def open(self, rows: Rows) -> None:
        """Begin a step."""
        self._rows = rows
        if self._fresh is None:
            self._fresh = torch.ones_like(rows.mask)

    def close(self) -> None:
        """End a step: its slots have a past from now on."""
        assert self._fresh is not None, "open made it"
        self._fresh &= ~self._rows.mask

    def update(self, hidden: Tensor, layer: int) -> Tensor:
        """Return what came before `hidden` [slots, channels, n], and keep its end."""
        padding, replicates = self._paddings[layer]
        if not padding:
            return hidden[..., :0]
        held = self.held(layer, hidden[..., :1].expand(-1, -1, padding))
        if replicates:
            assert self._fresh is not None, "open made it"
            held = torch.where(self._fresh[:, None, None], hidden[..., :1], held)
        self.keep(layer, torch.cat([held, hidden], dim=-1)[..., -padding:])
        return held

    def held(self, layer: int, like: Tensor) -> Tensor:
        """Return what a layer keeps, zeros at first."""
        if layer not in self._held:
            self._held[layer] = torch.zeros_like(like, memory_format=torch.contiguous_format)
        return self._held[layer]

    def keep(self, layer: int, new: Tensor) -> None:
        """Replace what a layer keeps, for the slots of the step."""
        self._held[layer] = torch.where(self._rows.mask[:, None, None], new, self._held[layer])
