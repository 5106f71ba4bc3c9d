"""What a MOSS-TTS Local or Nano checkpoint says about itself in its config.json. Read in any process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from omni_core.modelkit.config_reader import ConfigReader
from omni_models_moss.checkpoint import CODEBOOK_SIZE, MossCheckpoint

_IDS = ("im_start", "im_end", "audio_start", "audio_end", "audio_user_slot", "audio_assistant_slot")


@dataclass(frozen=True)
class Checkpoint(MossCheckpoint):
    """The facts of one checkpoint folder."""

    model: ClassVar[str] = "MOSS-TTS Local or Nano"

    im_start: int
    im_end: int
    audio_start: int
    audio_end: int
    """Ends the speech; what the second row of the continue/stop head stands for."""
    user_slot: int
    """Text id of the rows that hold a reference's frames."""
    assistant_slot: int
    """Text id of the rows that hold spoken frames; what the first row of the continue/stop head stands for."""
    is_gpt2: bool = False
    """Whether the large transformer is like the small one (Nano), and not Qwen3 (Local)."""
    local_layers: int = 1
    """Layers of the small transformer."""

    @property
    def reads_decision(self) -> bool:
        """Whether the small transformer reads the decision before it makes codes, as in Nano.

        Local has a head of two rows for the decision and goes on with the codes at once. Nano decides by two rows of the text
        embeddings, and the one that won is read like a code.
        """
        return self.is_gpt2

    @classmethod
    def from_reader(cls, read: ConfigReader, folder: Path) -> Self:
        """Return the facts that a reader finds.

        Raises:
            ConfigError: A field is missing or has another type, or it is a model with another head.
        """
        is_gpt2 = not (read.raw.get("qwen3_config") or read.raw.get("language_config"))
        mode = read.optional("local_text_head_mode", str, "full_vocab" if is_gpt2 else "binary")
        if (mode == "binary") == is_gpt2:
            raise read.fault(
                f"local_text_head_mode {mode!r} is not supported",
                "use MOSS-TTS-Local-Transformer-v1.5, with its two-way head, or MOSS-TTS-Nano, with that of all text",
            )
        ids = {name.removeprefix("audio_") if "slot" in name else name: read.take(f"{name}_token_id", int) for name in _IDS}
        codebook_size = read.optional("audio_vocab_size", int, CODEBOOK_SIZE)
        return cls(
            folder=folder,
            num_codes=read.take("n_vq", int),
            codebook_size=codebook_size,
            pad_code=read.optional("audio_pad_token_id", int, codebook_size),
            sample_rate=read.optional("sampling_rate", int, read.optional("audio_tokenizer_sample_rate", int, 48_000)),
            is_gpt2=is_gpt2,
            local_layers=read.optional("local_transformer_layers", int, 1),
            **ids,
        )
