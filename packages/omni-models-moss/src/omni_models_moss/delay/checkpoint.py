"""What a checkpoint of the delay pattern says about itself in its config.json, and which of the family it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

from omni_core.modelkit.config_reader import ConfigReader
from omni_models_moss.checkpoint import CODEBOOK_SIZE, MossCheckpoint


class Kind(StrEnum):
    """What a checkpoint was trained for. All of them have one architecture."""

    TTS = "MOSS-TTS"
    DIALOGUE = "MOSS-TTSD"
    VOICE = "MOSS-VoiceGenerator"
    SOUND = "MOSS-SoundEffect"


_MARKS = {
    r"(?<![a-z0-9])ttsd(?![a-z0-9])": Kind.DIALOGUE,
    r"voice[-_ ]?generator": Kind.VOICE,
    r"sound[-_ ]?effect": Kind.SOUND,
}
"""What names of repositories and folders have in them, in small letters."""


def kind_of(*names: str | None) -> Kind:
    """Return what a checkpoint is by its names, the first that says something; config.json does not tell."""
    for plain in (part.lower() for name in names for part in _ends(name or "")):
        for mark, kind in _MARKS.items():
            if re.search(mark, plain):
                return kind
    return Kind.TTS


def _ends(name: str) -> tuple[str, ...]:
    """Return what a checkpoint may be called by: the end of its name, and the repository of a snapshot in the Hub's cache."""
    path = Path(name)
    return (path.name, path.parents[1].name) if path.parent.name == "snapshots" else (path.name,)


@dataclass(frozen=True)
class Checkpoint(MossCheckpoint):
    """The facts of one checkpoint folder. The last row of every table of codes stands for no code."""

    model: ClassVar[str] = "MOSS-TTS"

    kind: Kind
    """By the folder's name, or by `_name_or_path` of config.json."""
    pad: int
    im_start: int
    im_end: int
    """Ends the answer."""
    audio_start: int
    audio_end: int
    user_slot: int
    """Text id of the rows that hold a reference's frames."""
    gen_slot: int
    """Text id of the rows that begin a spoken frame."""
    delay_slot: int
    """Text id of the rows behind them, which only complete frames."""

    @classmethod
    def from_reader(cls, read: ConfigReader, folder: Path) -> Self:
        """Return the facts that a reader finds."""
        # transformers leaves values out of a config.json that are the class's own.
        size = read.optional("audio_vocab_size", int, CODEBOOK_SIZE)
        named = read.raw.get("_name_or_path")
        return cls(
            folder=folder,
            kind=kind_of(str(folder), named if isinstance(named, str) else None),
            pad=read.optional("pad_token_id", int, 151643),
            im_start=read.optional("im_start_token_id", int, 151644),
            im_end=read.optional("im_end_token_id", int, 151645),
            audio_start=read.optional("audio_start_token_id", int, 151652),
            audio_end=read.optional("audio_end_token_id", int, 151653),
            user_slot=read.optional("audio_user_slot_token_id", int, 151654),
            gen_slot=read.optional("audio_assistant_gen_slot_token_id", int, 151656),
            delay_slot=read.optional("audio_assistant_delay_slot_token_id", int, 151662),
            num_codes=read.optional("n_vq", int, 32),
            codebook_size=size,
            pad_code=read.optional("audio_pad_code", int, size),
            sample_rate=read.optional("sampling_rate", int, 24_000),
        )

    @property
    def hears(self) -> bool:
        """Whether requests may bring recordings: not where the voice or the sound is described."""
        return self.kind in (Kind.TTS, Kind.DIALOGUE)
