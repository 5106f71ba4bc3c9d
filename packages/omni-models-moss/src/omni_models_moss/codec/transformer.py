"""A causal transformer at one rate of the codec: each column looks at itself and a window of earlier columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from omni_core.modelkit.weights import TensorReader
from omni_models_moss.codec.config import TransformerSizes
from omni_models_moss.codec.memory import PIECE_FRAMES, Piece

_EPS = 1e-5


@dataclass(frozen=True)
class Placement:
    """Where weights go, and what type they become there."""

    device: torch.device
    dtype: torch.dtype

    def put(self, tensor: Tensor) -> Tensor:
        """Return the tensor there."""
        return tensor.to(self.device, self.dtype)


@dataclass(frozen=True)
class _Columns:
    """What all layers of a transformer need to know of the columns of a piece."""

    piece: Piece
    places: Tensor
    """Where in the rings the new columns go: [batch, columns]."""
    used: int
    """How many columns of the rings may hold something."""
    mask: Tensor
    """Which places each new column may look at: [batch, 1, columns, used]."""
    rotation: tuple[Tensor, Tensor]
    """Cosine and sine of the new columns' positions: [batch, columns, 1, head / 2] in float32."""


class CausalTransformer:
    """From columns [batch, columns, inputs] to columns [batch, columns, outputs].

    Args:
        reader: The tensors of the encoder or decoder.
        sizes: The transformer's sizes.
        first_layer: Number of its first layer in the memory.
        placement: Where the weights go.
    """

    def __init__(self, reader: TensorReader, sizes: TransformerSizes, first_layer: int, placement: Placement) -> None:
        self.sizes = sizes
        self._in = _projection(reader, f"{sizes.index}.input_proj.weight", sizes.width, sizes.inputs, placement)
        self._layers = [
            _Layer(reader, f"{sizes.index}.transformer.layers.{index}", sizes, first_layer + index, placement)
            for index in range(sizes.layers)
        ]
        self._out = _projection(reader, f"{sizes.index}.output_proj.weight", sizes.outputs, sizes.width, placement)
        self._head = sizes.width // sizes.heads
        self._ring = ring_columns(sizes)

    def __call__(self, x: Tensor, piece: Piece) -> Tensor:
        """Return the outputs of the piece's columns, which become a part of the memory."""
        columns = self._columns(piece)
        x = x if self._in is None else F.linear(x, self._in)
        for layer in self._layers:
            x = layer(x, columns)
        return x if self._out is None else F.linear(x, self._out)

    def move(self, device: torch.device) -> None:
        """Move the weights."""
        self._in, self._out = (None if weight is None else weight.to(device) for weight in (self._in, self._out))
        for layer in self._layers:
            layer.move(device)

    def _columns(self, piece: Piece) -> _Columns:
        device, rate, ring = piece.seen.device, self.sizes.rate, self._ring
        count = piece.frames * rate
        positions = piece.seen[:, None] * rate + torch.arange(count, device=device)
        used = min(ring, piece.most_seen * rate + count)
        newest = positions[:, -1:]
        # The newest position that a place can hold; for places that nothing was written to it is negative.
        held = newest - (newest - torch.arange(used, device=device)) % ring
        distance = positions[:, :, None] - held[:, None]
        mask = (distance >= 0) & (distance < self.sizes.window) & (held >= 0)[:, None]
        return _Columns(piece, positions % ring, used, mask[:, None], self._rotation(positions))

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(0, self._head, 2, device=positions.device, dtype=torch.float32) / self._head
        angles = (positions[..., None] * self.sizes.max_period**-steps)[:, :, None]
        return angles.cos(), angles.sin()


def ring_columns(sizes: TransformerSizes) -> int:
    """Return how many columns of each layer are kept: what the oldest column of a piece looks back to, and the piece."""
    return sizes.window - 1 + PIECE_FRAMES * sizes.rate


class _Layer:
    """Attention and a two-layer network, each behind a norm; the layer scales are folded into the last product of each."""

    def __init__(self, reader: TensorReader, name: str, sizes: TransformerSizes, number: int, placement: Placement) -> None:
        width, inner, put = sizes.width, sizes.inner, placement.put
        self._number, self._heads = number, sizes.heads
        weights, biases = (
            [put(reader.take(f"{name}.norm{index}.{part}", width)) for index in (1, 2)] for part in ("weight", "bias")
        )
        self._norms = list(zip(weights, biases, strict=True))
        scales = [reader.take(f"{name}.layer_scale_{index}.scale", width)[:, None] for index in (1, 2)]
        # Released files name these tensors in two ways.
        self._qkv = put(_either(reader, f"{name}.self_attn.in_projs.0", f"{name}.self_attn.in_proj", 3 * width, width))
        out = _either(reader, f"{name}.self_attn.out_projs.0", f"{name}.self_attn.out_proj", width, width)
        self._out = put(out * scales[0])
        self._up = put(_either(reader, f"{name}.linear1", f"{name}.ffn.0", inner, width))
        self._down = put(_either(reader, f"{name}.linear2", f"{name}.ffn.2", width, inner) * scales[1])

    def move(self, device: torch.device) -> None:
        self._norms = [(weight.to(device), bias.to(device)) for weight, bias in self._norms]
        self._qkv, self._out, self._up, self._down = (
            weight.to(device) for weight in (self._qkv, self._out, self._up, self._down)
        )

    def __call__(self, x: Tensor, columns: _Columns) -> Tensor:
        x = x + F.linear(self._attend(self._normalized(x, 0), columns), self._out)
        return x + F.linear(F.gelu(F.linear(self._normalized(x, 1), self._up)), self._down)

    def _normalized(self, x: Tensor, which: int) -> Tensor:
        weight, bias = self._norms[which]
        return F.layer_norm(x, x.shape[-1:], weight, bias, _EPS)

    def _attend(self, x: Tensor, columns: _Columns) -> Tensor:
        batch, count, width = x.shape
        piece = columns.piece
        qkv = F.linear(x, self._qkv).reshape(batch, count, 3, self._heads, -1)
        query = _rotated(qkv[:, :, 0], columns.rotation)
        new = torch.stack((_rotated(qkv[:, :, 1], columns.rotation), qkv[:, :, 2]), dim=2)
        piece.memory.write(self._number, piece.slots, columns.places, new)
        kept = piece.memory.read(self._number, piece.slots, piece.first_slot, columns.used)
        key, value = (part.transpose(1, 2) for part in kept.unbind(2))
        y = F.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=columns.mask)
        return y.transpose(1, 2).reshape(batch, count, width)


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return [batch, columns, heads, head] with each pair of neighbouring values turned by its column's angle."""
    cos, sin = rotation
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def _projection(reader: TensorReader, name: str, rows: int, columns: int, placement: Placement) -> Tensor | None:
    """Return a projection's weight, None where the checkpoint has none because both widths are equal."""
    if rows == columns and name not in reader.names:
        return None
    return placement.put(reader.take(name, rows, columns))


def _either(reader: TensorReader, name: str, other: str, rows: int, columns: int) -> Tensor:
    """Return the weight that has the one name or the other."""
    chosen = other if f"{other}.weight" in reader.names else name
    return reader.take(f"{chosen}.weight", rows, columns)
