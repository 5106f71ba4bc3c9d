"""The parts of the encoder or of the decoder, one behind the other, with the memory of the streams that pass through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from omni_core.modelkit.weights import TensorReader
from omni_models_moss.codec.config import Part, Patch
from omni_models_moss.codec.memory import PIECE_FRAMES, Piece, Stream, StreamMemory
from omni_models_moss.codec.transformer import CausalTransformer, Placement, ring_columns


class CodecStack:
    """Pass pieces of streams through the parts.

    Args:
        reader: The tensors of the encoder or of the decoder, and of nothing else.
        parts: Its parts.
        placement: Where the weights and the memory are.
        joins: Whether patches join columns (the encoder) or share them out (the decoder).
    """

    def __init__(self, reader: TensorReader, parts: Sequence[Part], placement: Placement, *, joins: bool) -> None:
        self._parts: list[Patch | CausalTransformer] = []
        self._joins = joins
        self._device = placement.device
        shapes: list[tuple[int, int, int]] = []
        for part in parts:
            if isinstance(part, Patch):
                self._parts.append(part)
            else:
                self._parts.append(CausalTransformer(reader, part, len(shapes), placement))
                shapes += [(ring_columns(part), part.heads, part.width // part.heads)] * part.layers
        reader.finish()
        self.memory = StreamMemory(shapes, placement.device, placement.dtype)
        """Of the streams under way. Weights can be replaced under it."""

    def move(self, device: torch.device) -> None:
        """Move the weights."""
        for part in self._parts:
            if isinstance(part, CausalTransformer):
                part.move(device)

    def __call__(self, x: Tensor, streams: Sequence[Stream], frames: int) -> Tensor:
        """Return the outputs [batch, columns, outputs] of the next frames' columns, and count the frames.

        Args:
            x: [batch, columns, inputs].
            streams: One for each row.
            frames: How many frames the columns are, `PIECE_FRAMES` at most.
        """
        piece = Piece(self.memory, streams, frames, self._device)
        for part in self._parts:
            if isinstance(part, CausalTransformer):
                x = part(x, piece)
            else:
                x = _join(x, part.size) if self._joins else _share(x, part.size)
        piece.finish()
        return x

    @contextmanager
    def whole(self, streams: Sequence[Stream], pieces: int) -> Iterator[Sequence[Stream]]:
        """Give streams to pass so many pieces through; they become `streams` only if all of them pass.

        One piece leaves nothing behind when it fails, and a stream without a past is reset. Others are copied.
        """
        if pieces <= 1:
            yield streams
            return
        moving: list[Stream] = []
        try:
            for stream in streams:
                moving.append(self.memory.copy(stream) if stream.frames else stream)  # noqa: PERF401 - see `finally`
            yield moving
        except BaseException:  # however it failed, streams are as before; raised again
            for stream, moved in zip(streams, moving, strict=False):
                if moved is stream:
                    stream.frames = 0
            raise
        else:
            for stream, moved in zip(streams, moving, strict=True):
                stream.slot, moved.slot, stream.frames = moved.slot, stream.slot, moved.frames
        finally:
            for stream, moved in zip(streams, moving, strict=False):
                if moved is not stream:
                    self.memory.close(moved)


def _join(x: Tensor, size: int) -> Tensor:
    """Return one column for `size` columns: value by value, the columns beside each other."""
    batch, columns, width = x.shape
    return x.reshape(batch, columns // size, size, width).transpose(2, 3).reshape(batch, columns // size, -1)


def _share(x: Tensor, size: int) -> Tensor:
    """Return `size` columns for one column, the opposite of `_join`."""
    batch, columns, width = x.shape
    return x.reshape(batch, columns, width // size, size).transpose(2, 3).reshape(batch, columns * size, -1)


def spans(frames: int) -> Iterator[tuple[int, int]]:
    """Return begin and end of each piece of so many frames."""
    return ((begin, min(begin + PIECE_FRAMES, frames)) for begin in range(0, frames, PIECE_FRAMES))
