"""The text tokenizer of a checkpoint, by the `tokenizers` library alone: neither transformers nor torch is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from omni_core.errors import ConfigError

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is cut before byte-pair merging: digits one by one. vocab.json and merges.txt leave it out, and the models whose
checkpoints may lack tokenizer.json share it."""


class TextTokenizer:
    """Turn text into ids. Special tokens written in the text are read as such, as in the reference."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: str | Path) -> TextTokenizer:
        """Load tokenizer.json, or what vocab.json, merges.txt and tokenizer_config.json amount to.

        Raises:
            ConfigError: The files are missing or cannot be read; the message names the folder.
        """
        path = Path(folder)
        ready = path / "tokenizer.json"
        try:
            return cls(Tokenizer.from_file(str(ready)) if ready.is_file() else _from_parts(path))
        except Exception as error:  # the tokenizers library raises bare Exception
            raise ConfigError(
                f"cannot load the tokenizer: {error}",
                where=str(path),
                hint="a checkpoint has tokenizer.json, or vocab.json, merges.txt and tokenizer_config.json",
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, nothing added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _from_parts(path: Path) -> Any:
    tokenizer = Tokenizer(models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt")))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    raw = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    for number, fields in sorted(raw.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        token = _added_token(fields)
        (tokenizer.add_special_tokens if fields.get("special") else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != int(number):
            raise ValueError(f"added token {token.content!r} should have id {number}: vocab.json belongs to another checkpoint")
    return tokenizer


def _added_token(fields: dict[str, Any]) -> Any:
    flags = {name: bool(fields.get(name)) for name in ("lstrip", "normalized", "rstrip", "single_word", "special")}
    return AddedToken(fields["content"], **flags)
