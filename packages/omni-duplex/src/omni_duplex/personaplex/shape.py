"""Sizes of a checkpoint, and which files it consists of. Imports nothing heavy.

The published checkpoint has no sizes in its config.json: they are the defaults here. A tiny one names its own under `sizes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError

MODEL_TYPE = "personaplex"
WEIGHTS = "model.safetensors"
TEXT_TOKENIZER = "tokenizer_spm_32k_3.model"
CODEC = "tokenizer-e351c8d8-checkpoint125.safetensors"
VOICES = "voices.tgz"

SAMPLE_RATE = 24_000
FRAME_MS = 80
FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000
CODES = 8
"""Codebooks of each side. The first one carries what is said, the others how it sounds."""
STREAMS = 1 + 2 * CODES
"""Text, the agent's codes, the user's codes."""
DELAYS = (0, *(0, *[1] * (CODES - 1)) * 2)
"""Frames by which each stream is late in the network's columns."""
SILENT_FRAMES = 6
"""Frames of silence behind the voice prompt, and again behind the text prompt: half a second each."""
PUBLISHED_SILENCE = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
"""Codes of the agent's silence."""
PUBLISHED_SINE = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
"""Codes of a 440 Hz tone, which stands for the user while prompts are read."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network."""

    text_vocab: int = 32_000
    text_pad: int = 3
    """Text token of a frame without a word."""
    text_word_end: int = 0
    """Text token of the frame before a word."""
    card: int = 2048
    """Entries of each codebook."""
    dim: int = 4096
    layers: int = 32
    heads: int = 32
    context: int = 3000
    """Frames that the network looks back."""
    ffn: int = 11_264
    depth_dim: int = 1024
    depth_layers: int = 6
    depth_heads: int = 16
    depth_ffn: int = 2816
    silence: tuple[int, ...] = PUBLISHED_SILENCE
    sine: tuple[int, ...] = PUBLISHED_SINE
    codec: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of the codec by transformers' names; those that are missing are the published ones."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any], where: str = "config.json") -> Shape:
        """Return the sizes that a config.json names.

        Raises:
            ConfigError: A size is unknown or of the wrong type.
        """
        given = config.get("sizes") or {}
        known = {found.name: found.default for found in fields(cls)}
        hint = "give an unchanged checkpoint"
        if not isinstance(given, Mapping):
            raise ConfigError("sizes must be an object", where=where, hint=hint)
        if unknown := sorted(set(given) - set(known)):
            raise ConfigError(f"sizes has no field {unknown[0]!r}", where=where, hint=hint)
        values: dict[str, Any] = {}
        for name, value in given.items():
            is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if name in ("silence", "sine"):
                good = isinstance(value, list) and len(value) == CODES and all(isinstance(code, int) for code in value)
                values[name] = tuple(value) if good else None
            else:
                good = isinstance(value, Mapping) if name == "codec" else is_whole
                values[name] = value
            if not good:
                raise ConfigError(f"sizes.{name} cannot be {value!r}", where=where, hint=hint)
        return cls(**values)


def is_checkpoint(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a folder holds this model: it says so, or it says nothing and has its text tokenizer."""
    if config.get("model_type") == MODEL_TYPE:
        return True
    return not config.get("model_type") and not config.get("architectures") and (folder / TEXT_TOKENIZER).is_file()
