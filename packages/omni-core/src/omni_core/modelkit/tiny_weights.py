"""Drawing a tiny checkpoint's weights and writing them as safetensors, with numpy alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Drawn:
    """A tensor whose values come from a normal distribution."""

    shape: tuple[int, ...]
    center: float = 0.0
    spread: float = 1.0
    rows: Mapping[int, float] = field(default_factory=dict)
    """Factors for single rows."""
    values: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    """Single values that are not drawn; they come after the factors."""
    least: float = -math.inf

    @classmethod
    def product(cls, *shape: int, gain: float = 1.0) -> Drawn:
        """Return a matrix or kernel [outputs, inputs, ...] whose results are as large as its inputs, times `gain`."""
        return cls(shape, spread=gain / math.sqrt(math.prod(shape[1:])))

    @classmethod
    def table(cls, *shape: int, spread: float = 1.0) -> Drawn:
        """Return a table of vectors."""
        return cls(shape, spread=spread)

    @classmethod
    def bias(cls, size: int, *, gain: float = 1.0) -> Drawn:
        """Return small shifts."""
        return cls((size,), spread=0.05 * gain)

    @classmethod
    def norm(cls, size: int, *, gain: float = 1.0) -> Drawn:
        """Return a norm's weight, near `gain` and never exactly it."""
        return cls((size,), center=gain, spread=0.1 * gain)

    def draw(self, generator: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the values."""
        values = self.center + self.spread * generator.standard_normal(self.shape, dtype=np.float32)
        for row, factor in self.rows.items():
            values[row] *= factor
        for index, value in self.values.items():
            values[index] = value
        return np.maximum(values, self.least).astype(np.float32)


def write_tensors(path: Path, tensors: Mapping[str, Drawn], *, seed: int, dtype: Literal["BF16", "F32"]) -> None:
    """Draw every tensor, in the order of the names, and write them as a safetensors file.

    The format is written here, in its few lines, because safetensors has no call for bfloat16 that works without torch.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    position = 0
    for name, spec in sorted(tensors.items()):
        values = spec.draw(generator)
        parts.append((_bfloat16(values) if dtype == "BF16" else values).tobytes())
        header[name] = {"dtype": dtype, "shape": spec.shape, "data_offsets": (position, position + len(parts[-1]))}
        position += len(parts[-1])
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.writelines(parts)


def _bfloat16(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return the bits of the nearest bfloat16 numbers, ties to even; numpy has no such type."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
