"""What a MOSS-TTS Local checkpoint says about itself in its config.json. Read in any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import ConfigReader

_MODEL = "MOSS-TTS Local"
_IDS = ("im_start", "im_end", "audio_start", "audio_end", "audio_user_slot", "audio_assistant_slot")


@dataclass(frozen=True)
class Checkpoint:
    """The facts of one checkpoint folder."""

    folder: Path
    im_start: int
    im_end: int
    audio_start: int
    audio_end: int
    """Ends the speech; what the second row of the continue/stop head stands for."""
    user_slot: int
    """Text id of the rows that hold a reference's frames."""
    assistant_slot: int
    """Text id of the rows that hold spoken frames; what the first row of the continue/stop head stands for."""
    num_codes: int
    codebook_size: int
    pad_code: int
    sample_rate: int

    @classmethod
    def read(cls, folder: str | Path) -> Checkpoint:
        """Return the facts of the checkpoint in `folder`.

        Raises:
            ConfigError: config.json is missing, is no JSON, lacks a field, or is of a model with another head.
        """
        return cls._from_reader(ConfigReader.of_folder(folder, _MODEL), folder)

    @classmethod
    def from_config(cls, raw: Mapping[str, Any], folder: str | Path) -> Checkpoint:
        """Return the facts in an already parsed config.json."""
        return cls._from_reader(ConfigReader(raw, str(Path(folder) / "config.json"), _MODEL), folder)

    @classmethod
    def _from_reader(cls, read: ConfigReader, folder: str | Path) -> Checkpoint:
        mode = read.optional("local_text_head_mode", str, "binary")
        if mode != "binary":
            raise ConfigError(
                f"local_text_head_mode {mode!r} is not supported",
                where=read.where,
                hint="use a checkpoint with the two-way head of MOSS-TTS-Local-Transformer-v1.5",
            )
        ids = {name.removeprefix("audio_") if "slot" in name else name: read.take(f"{name}_token_id", int) for name in _IDS}
        codebook_size = read.take("audio_vocab_size", int)
        return cls(
            folder=Path(folder),
            num_codes=read.take("n_vq", int),
            codebook_size=codebook_size,
            pad_code=read.optional("audio_pad_token_id", int, codebook_size),
            sample_rate=read.optional("sampling_rate", int, 48_000),
            **ids,
        )
