"""What a checkpoint of the delay pattern says about itself in its config.json, and which of the family it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from omni_core.modelkit.config_reader import ConfigReader

_MODEL = "MOSS-TTS"


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
    for name in names:
        plain = Path(name or "").name.lower()
        for mark, kind in _MARKS.items():
            if re.search(mark, plain):
                return kind
    return Kind.TTS


@dataclass(frozen=True)
class Checkpoint:
    """The facts of one checkpoint folder."""

    folder: Path
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
    num_codes: int
    codebook_size: int
    pad_code: int
    """Stands for no code: the last row of every table."""
    sample_rate: int

    @classmethod
    def read(cls, folder: str | Path) -> Checkpoint:
        """Return the facts of the checkpoint in `folder`.

        Raises:
            ConfigError: config.json is missing, is no JSON or has a field of another type.
        """
        return cls._from_reader(ConfigReader.of_folder(folder, _MODEL), folder)

    @classmethod
    def from_config(cls, raw: Mapping[str, Any], folder: str | Path) -> Checkpoint:
        """Return the facts in an already parsed config.json."""
        return cls._from_reader(ConfigReader(raw, str(Path(folder) / "config.json"), _MODEL), folder)

    @classmethod
    def _from_reader(cls, read: ConfigReader, folder: str | Path) -> Checkpoint:
        # transformers leaves values out of a config.json that are the class's own.
        size = read.optional("audio_vocab_size", int, 1024)
        return cls(
            folder=Path(folder),
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
