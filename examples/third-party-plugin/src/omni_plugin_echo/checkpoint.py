"""The files of an echo checkpoint: `config.json` and `pitches.npy`, the frequency of each number in Hz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.errors import ConfigError

PITCHES = 64


@dataclass(frozen=True)
class Facts:
    """What config.json says."""

    sample_rate: int
    samples_per_character: int
    voices: Mapping[str, float]
    """Names to the factor by which every pitch is multiplied."""


def read_facts(config: Mapping[str, Any]) -> Facts:
    """Return the facts of a checkpoint's configuration.

    Raises:
        ConfigError: A value is missing or of the wrong kind.
    """
    try:
        facts = Facts(
            int(config["sample_rate"]),
            int(config["samples_per_character"]),
            {str(name): float(factor) for name, factor in config["voices"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the value {error} is missing or wrong", where="config.json", hint="omni tiny echo DIR") from error
    if facts.sample_rate < 1 or facts.samples_per_character < 1 or not facts.voices:
        raise ConfigError("rates must be positive, and there must be a voice", where="config.json")
    return facts


def load_pitches(folder: Path) -> np.ndarray[Any, Any]:
    """Return the frequencies: float32 [PITCHES].

    Raises:
        ConfigError: The file is missing or holds something else.
    """
    path = folder / "pitches.npy"
    try:
        pitches = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the pitches: {error}", where=str(path), hint="make it anew: omni tiny echo DIR"
        ) from error
    if pitches.shape != (PITCHES,) or pitches.dtype != np.float32:
        raise ConfigError(f"expected {PITCHES} float32 numbers, found {pitches.dtype} {pitches.shape}", where=str(path))
    return pitches


def write_checkpoint(folder: Path, facts: Facts, pitches: np.ndarray[Any, Any]) -> None:
    """Write both files."""
    config = {
        "model_type": "echo",
        "architectures": ["EchoForSpeech"],
        "sample_rate": facts.sample_rate,
        "samples_per_character": facts.samples_per_character,
        "voices": dict(facts.voices),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    np.save(folder / "pitches.npy", pitches.astype(np.float32))
