"""What a streaming decoder remembers of each request, and how a batch of requests passes through its layers.

Every layer that looks back is causal, so its whole memory is the last few columns of its input (a convolution) or the keys
and values of the last frames (attention). Before the first frame both are zeros, which is the padding of a one-shot decode;
the number of frames seen tells attention which of its columns are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class CodecState:
    """One request's memory: a tensor for each layer that looks back, owned by this request."""

    memory: list[Tensor]
    frames: int = 0
    """Frames decoded so far."""


class MemoryPlan:
    """The shapes of a decoder's memory, collected while its layers are built."""

    def __init__(self) -> None:
        self._shapes: list[tuple[int, ...]] = []

    def reserve(self, *shape: int) -> int:
        """Return the slot of a new tensor of memory."""
        self._shapes.append(shape)
        return len(self._shapes) - 1

    def fresh(self, device: torch.device, dtype: torch.dtype) -> CodecState:
        """Return the memory of a request that has seen no frame."""
        return CodecState([torch.zeros(shape, device=device, dtype=dtype) for shape in self._shapes])


class Flow:
    """One pass of a batch: gives each layer the batch's memory and keeps the new one until `commit`."""

    def __init__(self, states: Sequence[CodecState]) -> None:
        self._states = states
        self._new: dict[int, Tensor] = {}
        self.frames = [state.frames for state in states]

    def extend(self, slot: int, x: Tensor, *, dim: int) -> Tensor:
        """Return the remembered columns followed by `x`, and remember the last ones of the two together.

        Args:
            slot: The layer's slot.
            x: `[batch, ...]`, as long as you like along `dim`.
            dim: The axis that is time, counted from the end.
        """
        old = self._new.get(slot)
        if old is None:
            old = torch.stack([state.memory[slot] for state in self._states])
        size = old.shape[dim]
        joined = torch.cat((old, x), dim)
        # A copy: a view would keep the layer's whole input alive until the end of the pass.
        self._new[slot] = joined.narrow(dim, joined.shape[dim] - size, size).clone()
        return joined

    def advance(self, frames: int) -> None:
        """Note that `frames` frames of every request have passed through all layers."""
        self.frames = [seen + frames for seen in self.frames]

    def commit(self) -> None:
        """Write the new memory into the requests' states."""
        for row, (state, frames) in enumerate(zip(self._states, self.frames, strict=True)):
            for slot, value in self._new.items():
                state.memory[slot].copy_(value[row])
            state.frames = frames
