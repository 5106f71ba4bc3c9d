"""What the codec's transformers remember of each stream: keys and values of the columns that later ones look back to.

Every stream has a slot, and in each layer's memory a ring of columns: the column at position p is written to place
p modulo the ring's length. Nothing is ever moved. A ring is longer than its window by one piece, so that writing a piece
overwrites nothing that the columns before it can see: a step that fails half-way has changed nothing that counts, because
only the number of frames seen says which columns are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PIECE_FRAMES = 16
"""Most frames that pass through the layers at once; more would cost memory and gain nothing."""


@dataclass(eq=False)
class Stream:
    """One stream of audio under way."""

    slot: int
    frames: int = 0
    """Frames that have passed so far."""


class StreamMemory:
    """The memory of all streams of one encoder or decoder. It grows with the streams that are open at once.

    Args:
        shapes: For each layer: columns of its ring, heads, and the width of a head.
        device: Where the memory is.
        dtype: Type of keys and values.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, int]], device: torch.device, dtype: torch.dtype) -> None:
        self._layers = [torch.zeros(1, columns, 2, heads, head, device=device, dtype=dtype) for columns, heads, head in shapes]
        self._free = [0]
        self._size = 1

    def open(self) -> Stream:
        """Return a stream that has seen nothing."""
        if not self._free:
            self._grow()
        return Stream(self._free.pop())

    def close(self, stream: Stream) -> None:
        """Free a stream's slot."""
        self._free.append(stream.slot)
        self._free.sort(reverse=True)  # low slots first: streams that lie side by side are read without a copy

    def copy(self, stream: Stream) -> Stream:
        """Return a new stream with the past of another."""
        made = self.open()
        for layer in self._layers:
            layer[made.slot].copy_(layer[stream.slot])
        made.frames = stream.frames
        return made

    @property
    def open_streams(self) -> int:
        """How many streams hold a slot."""
        return self._size - len(self._free)

    def write(self, layer: int, slots: Tensor, places: Tensor, columns: Tensor) -> None:
        """Write the columns [batch, columns, 2, heads, head] of streams to places [batch, columns] of their rings."""
        self._layers[layer].index_put_((slots[:, None], places), columns)

    def read(self, layer: int, slots: Tensor, first: int | None, used: int) -> Tensor:
        """Return the first `used` columns [batch, used, 2, heads, head] of streams.

        Args:
            layer: The layer.
            slots: Their slots [batch].
            first: The first slot where all of them lie side by side; then nothing is copied.
            used: How many columns of the rings may hold something.
        """
        memory = self._layers[layer][:, :used]
        return memory.index_select(0, slots) if first is None else memory[first : first + slots.shape[0]]

    def _grow(self) -> None:
        # One layer after the other, so that no more than one of them is there twice.
        for index, layer in enumerate(self._layers):
            self._layers[index] = torch.cat((layer, torch.zeros_like(layer)))
        self._free = list(range(2 * self._size - 1, self._size - 1, -1))
        self._size *= 2


class Piece:
    """A piece of a batch of streams on its way through the layers: equally many frames of each.

    Args:
        memory: The memory of the streams.
        streams: One for each row of the batch. Their frames are counted on by `finish`.
        frames: How many frames the piece has.
    """

    def __init__(self, memory: StreamMemory, streams: Sequence[Stream], frames: int, device: torch.device) -> None:
        self.memory = memory
        self.frames = frames
        slots = [stream.slot for stream in streams]
        self.first_slot = slots[0] if slots == list(range(slots[0], slots[0] + len(slots))) else None
        self.slots = torch.tensor(slots, device=device)
        self.seen = torch.tensor([stream.frames for stream in streams], device=device)
        self.most_seen = max(stream.frames for stream in streams)
        self._streams = streams

    def finish(self) -> None:
        """Count the piece's frames: only now its columns are a part of the streams' past."""
        for stream in self._streams:
            stream.frames += self.frames
