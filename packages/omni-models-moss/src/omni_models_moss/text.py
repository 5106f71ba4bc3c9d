"""The tokenizer of a MOSS-TTS checkpoint: byte pairs as files of JSON, or a SentencePiece model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from omni_core.errors import ConfigError
from omni_core.modelkit.tokenizer import TextTokenizer

SENTENCEPIECE = "tokenizer.model"


class Tokenizer(Protocol):
    """Turns text into ids."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, nothing added."""


class SentencePieceTokenizer:
    """Turn text into ids by a SentencePiece model."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    @classmethod
    def load(cls, path: Path) -> SentencePieceTokenizer:
        """Load a model file.

        Raises:
            ConfigError: It cannot be read.
        """
        from sentencepiece import SentencePieceProcessor

        try:
            return cls(SentencePieceProcessor(model_file=str(path)))
        except Exception as error:  # the library raises what its C++ code raises
            raise ConfigError(
                f"cannot load the tokenizer: {error}", where=str(path), hint="download the whole checkpoint"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, nothing added."""
        ids: list[int] = self._processor.encode(text, out_type=int)
        return ids


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Return the tokenizer in a checkpoint's folder.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    path = Path(folder)
    has_json = any((path / name).is_file() for name in ("tokenizer.json", "vocab.json"))
    if not has_json and (path / SENTENCEPIECE).is_file():
        return SentencePieceTokenizer.load(path / SENTENCEPIECE)
    return TextTokenizer.load(path)
