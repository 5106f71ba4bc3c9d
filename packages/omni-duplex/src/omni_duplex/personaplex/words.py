"""The agent's text stream as words: tokens to text, with letters that are spread over several tokens put together."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError, DependencyError
from omni_duplex.personaplex.prompt import wrapped
from omni_duplex.personaplex.shape import TEXT_TOKENIZER, Shape

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


class TextTokens:
    """The text tokenizer of a checkpoint.

    Args:
        folder: The checkpoint.
        shape: Its sizes.

    Raises:
        ConfigError: The tokenizer is missing, damaged, or another model's.
        DependencyError: sentencepiece is not installed.
    """

    def __init__(self, folder: Path, shape: Shape) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise DependencyError("sentencepiece is not installed", hint="pip install 'omni-duplex[personaplex]'") from error
        path = folder / TEXT_TOKENIZER
        try:
            self._model: Any = SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"{path.name} cannot be read: {error}", where=str(path), hint="download it again") from error
        if len(self._model) != shape.text_vocab:
            raise ConfigError(
                f"it has {len(self._model)} pieces and the network {shape.text_vocab}",
                where=str(path),
                hint="use the tokenizer and the weights of one checkpoint",
            )

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a text prompt."""
        return list(self._model.encode(wrapped(text)))

    def piece(self, token: int) -> str | bytes:
        """Return what a token stands for: text, a byte of a letter, or nothing where it is a sign for the model."""
        if self._model.is_control(token) or self._model.is_unknown(token):
            return ""
        piece: str = self._model.id_to_piece(token)
        if match := _BYTE.fullmatch(piece):
            return bytes.fromhex(match[1])
        return piece.replace(_SPACE, " ")


class Words:
    """One session's words."""

    def __init__(self, tokens: TextTokens) -> None:
        self._tokens = tokens
        self._letters = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Return what a token adds; a letter comes when its last byte does."""
        piece = self._tokens.piece(token)
        if isinstance(piece, bytes):
            return self._letters.decode(piece)
        if not piece:
            return ""
        cut_off = self._letters.decode(b"", True)
        self._letters.reset()
        return cut_off + piece
