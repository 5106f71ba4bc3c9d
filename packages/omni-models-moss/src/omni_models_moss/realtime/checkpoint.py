"""What a MOSS-TTS Realtime checkpoint says about itself in its config.json. Read in any process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from omni_core.modelkit.config_reader import ConfigReader
from omni_models_moss.checkpoint import CODEBOOK_SIZE, MossCheckpoint

_PREFILL = 12
_WINDOW = 50


@dataclass(frozen=True)
class Checkpoint(MossCheckpoint):
    """The facts of one checkpoint folder. Behind the codes of each table there are marks, the first of which is the pad."""

    model: ClassVar[str] = "MOSS-TTS Realtime"

    vocab_size: int
    """Rows of each table of codes: the codes, and three marks behind them."""
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

    @classmethod
    def from_reader(cls, read: ConfigReader, folder: Path) -> Self:
        """Return the facts that a reader finds.

        Raises:
            ConfigError: A field has another type or a value that cannot be.
        """
        pad = read.optional("audio_pad_token", int, CODEBOOK_SIZE)
        found = cls(
            folder=folder,
            num_codes=read.optional("rvq", int, 16),
            vocab_size=read.optional("audio_vocab_size", int, 1027),
            codebook_size=pad,
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
        # A negative mark would stand for no code at all. One below the pad is a code that ends the speech, as in the reference.
        has_marks = all(0 <= mark < found.vocab_size for mark in (found.begin_code, found.end_code))
        if found.prefill < 1 or found.window < 0 or not has_marks:
            raise read.fault(
                f"delay_tokens_len {found.prefill}, repetition_window {found.window} and the marks {found.begin_code} and "
                f"{found.end_code} of {found.vocab_size} codes cannot be"
            )
        return found
