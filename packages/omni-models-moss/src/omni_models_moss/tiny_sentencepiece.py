"""The SentencePiece model of a tiny checkpoint: the special pieces of the released tokenizer, single bytes, a few words."""

from __future__ import annotations

from pathlib import Path

from omni_core.modelkit import tiny_sentencepiece

PIECES = (
    "<unk>",
    "<s>",
    "</s>",
    "<pad>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|user_slot|>",
    "<|assistant_slot|>",
)
"""The first pieces, in the order of their ids, which are those of the released tokenizer."""
_WORDS = ("user", "assistant", "None", "Hello", "\u2581Hello", "\u2581there", "\u2581world", "\u2581")


def write_model(path: Path) -> int:
    """Write the model and return the size of its vocabulary, rounded up."""
    return -(-tiny_sentencepiece.write_model(path, PIECES, _WORDS) // 64) * 64
