"""Records of tiny checkpoints with random weights, which `omni tiny NAME DIR` builds for demos and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TinyModelEntry:
    """One kind of tiny checkpoint that a plugin can build (hook `omni_tiny_models`)."""

    name: str
    """What the user types: `omni tiny NAME DIR`."""
    summary: str
    target: str
    """Target of a function `(folder: Path, variant: str, seed: int) -> None`."""
    variants: tuple[str, ...] = ("default",)
    """Accepted values of `--variant`; the first is the default."""
