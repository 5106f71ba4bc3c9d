"""What a MOSS-TTS Realtime checkpoint says about itself in its config.json. Read in any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.modelkit.config_reader import ConfigReader

_MODEL = "MOSS-TTS Realtime"
_PREFILL = 12
_WINDOW = 50


@dataclass(frozen=True)
class Checkpoint:
    """The facts of one checkpoint folder."""

    folder: Path
    num_codes: int
    vocab_size: int
    """Rows of each table of codes: the codes, and three marks behind them."""
    pad_code: int
    """Stands for no code; the first of the marks, so also the number of codes."""
    begin_code: int
    """Marks the last row before the first frame."""
    end_code: int
    """Ends the speech, in the place of a first code."""
    text_pad: int
    """Text id of the rows behind the text."""
    reference_pad: int
    """Text id of the rows that hold a reference's frames."""
    prefill: int
    """So many ids of the text come before the first frame, the others one with each frame."""
    window: int
    """So many frames are looked back to by the repetition penalty."""
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
        pad = read.optional("audio_pad_token", int, 1024)
        return cls(
            folder=Path(folder),
            num_codes=read.optional("rvq", int, 16),
            vocab_size=read.optional("audio_vocab_size", int, 1027),
            pad_code=pad,
            # The released config.json leaves the following to the reference's code, except for the two text ids.
            begin_code=read.optional("audio_bos_token", int, pad + 1),
            end_code=read.optional("audio_eos_token", int, pad + 2),
            text_pad=read.optional("text_pad", int, 151655),
            reference_pad=read.optional("reference_audio_pad", int, 151654),
            prefill=read.optional("delay_tokens_len", int, _PREFILL),
            window=read.optional("repetition_window", int, _WINDOW),
            sample_rate=read.optional("sampling_rate", int, 24_000),
        )
