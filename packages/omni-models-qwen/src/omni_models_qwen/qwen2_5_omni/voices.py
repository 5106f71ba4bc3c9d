"""The voices of a checkpoint: `spk_dict.pt`, read without running anything that is in it. Processes that have torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omni_core.errors import ConfigError
from omni_models_qwen.qwen2_5_omni.chat import DAMAGED, DEFAULT_VOICE, VOICES_FILE


@dataclass(frozen=True)
class Voice:
    """One voice."""

    name: str
    """As the checkpoint writes it."""
    mark: int
    """Text id whose embedding the talker reads before the reply."""
    conditioning: Tensor
    """What the codec's decoder knows of the speaker, [1, E]."""
    reference_mel: Tensor
    """A recording of the speaker as a mel spectrogram, [1, T, mels]."""


class Voices:
    """The voices of one checkpoint, matched without case."""

    def __init__(self, voices: Mapping[str, Voice]) -> None:
        self._voices = {name.lower(): voice for name, voice in voices.items()}

    @classmethod
    def read(cls, folder: str | Path) -> Voices:
        """Return the voices of the checkpoint in `folder`.

        Raises:
            ConfigError: The file is missing, damaged, or holds something else.
        """
        path = Path(folder) / VOICES_FILE
        hint = "download the whole checkpoint again"
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except DAMAGED as error:
            raise ConfigError(f"{VOICES_FILE} cannot be read: {error!r}", where=str(path), hint=hint) from error
        try:
            voices = {str(name): _voice(str(name), parts) for name, parts in found.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{VOICES_FILE} holds no voices: {error!r}", where=str(path), hint=hint) from error
        if not voices:
            raise ConfigError(f"{VOICES_FILE} holds no voices", where=str(path), hint=hint)
        return cls(voices)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, as the checkpoint writes them."""
        return tuple(voice.name for voice in self._voices.values())

    @property
    def marks(self) -> tuple[int, ...]:
        """The text ids of all voices."""
        return tuple(voice.mark for voice in self._voices.values())

    def find(self, name: str | None) -> Voice | None:
        """Return a voice, for None the one to speak with where none is named; None for a name that is no voice."""
        if name is None:
            return self._voices.get(DEFAULT_VOICE) or next(iter(self._voices.values()))
        return self._voices.get(name.lower())


def _voice(name: str, parts: Mapping[str, Any]) -> Voice:
    conditioning, mel = (torch.as_tensor(parts[key], dtype=torch.float32) for key in ("cond", "ref_mel"))
    if conditioning.dim() != 2 or mel.dim() != 3 or len(conditioning) != 1 or len(mel) != 1:
        raise ValueError(f"voice {name} has the shapes {list(conditioning.shape)} and {list(mel.shape)}")
    return Voice(name, int(parts["bos_token"]), conditioning, mel)
