"""Drawing a tiny checkpoint's weights and writing them as safetensors, with numpy alone; and its JSON files."""

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
    columns: Mapping[int, float] = field(default_factory=dict)
    """Factors for single columns."""
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
        for column, factor in self.columns.items():
            values[..., column] *= factor
        for index, value in self.values.items():
            values[index] = value
        return np.maximum(values, self.least).astype(np.float32)


Tensors = dict[str, Drawn]
"""Tensors by name."""


def under(prefix: str, tensors: Mapping[str, Drawn]) -> Tensors:
    """Return tensors with a prefix and a dot before their names."""
    return {f"{prefix}.{name}": spec for name, spec in tensors.items()}


def decoder_tensors(prefix: str, config: Mapping[str, Any], *, attention_gain: float) -> Tensors:
    """Return the layers and the last norm of a decoder whose queries and keys are normed.

    Args:
        prefix: Of the names.
        config: Its sizes, by the names that transformers uses.
        attention_gain: How sharply it attends: with plain random weights it averages over the prompt, and all texts give nearly
            the same reply.
    """
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "input_layernorm.weight": Drawn.norm(hidden),
        "post_attention_layernorm.weight": Drawn.norm(hidden),
        "self_attn.q_proj.weight": Drawn.product(queries, hidden),
        "self_attn.k_proj.weight": Drawn.product(keys, hidden),
        "self_attn.v_proj.weight": Drawn.product(keys, hidden),
        "self_attn.o_proj.weight": Drawn.product(hidden, queries, gain=attention_gain),
        "self_attn.q_norm.weight": Drawn.norm(head, gain=attention_gain),
        "self_attn.k_norm.weight": Drawn.norm(head),
        "mlp.gate_proj.weight": Drawn.product(inner, hidden),
        "mlp.up_proj.weight": Drawn.product(inner, hidden),
        "mlp.down_proj.weight": Drawn.product(hidden, inner),
    }
    found = {f"{prefix}.norm.weight": Drawn.norm(hidden)}
    for index in range(config["num_hidden_layers"]):
        found |= under(f"{prefix}.layers.{index}", layer)
    return found


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


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one of a checkpoint's JSON files as the published ones are written."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _bfloat16(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return the bits of the nearest bfloat16 numbers, ties to even; numpy has no such type."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
