"""Tiny checkpoints for `omni tiny echo DIR`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omni_plugin_echo.checkpoint import PITCHES, Facts, write_checkpoint


def build(folder: Path, variant: str, seed: int) -> None:
    """Write a checkpoint with random pitches between 220 and 880 Hz."""
    pitches = np.exp2(np.random.default_rng(seed).uniform(0, 2, PITCHES)) * 220
    write_checkpoint(folder, Facts(16_000, 640, {"low": 1.0, "high": 2.0}), pitches)
