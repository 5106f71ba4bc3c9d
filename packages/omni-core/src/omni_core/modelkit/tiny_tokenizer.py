"""The tokenizer of tiny checkpoints: byte pairs over single bytes and a handful of whole words, in the usual four files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from omni_core.modelkit.tokenizer import SPLIT

_WORDS = ("user", "assistant", "system", "Hello", "Ġthere", "Ġworld", "Ġis", "Ġa", "Ġvoice", "Ġto")
"""Words with an id of their own. The role names must be among them: prompts are cut by counting ids. `Ġ` is a space."""


def write_tokenizer(
    folder: Path, special: Sequence[str], tokenizer_class: str, fields: Mapping[str, Any] | None = None
) -> Mapping[str, int]:
    """Write the tokenizer's four files and return the ids of its special tokens and of the words above.

    `tokenizer_class` is the name under which transformers knows tokenizers of this kind, `fields` are more of its settings.

    The ids are not those of the published tokenizers, so that code which has one of those built in fails on a tiny checkpoint.
    """
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        for end in range(1, len(word)):
            pair = (word[:end], word[end])
            if pair not in merges:
                merges.append(pair)
            vocabulary.setdefault(word[: end + 1], len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    to_words = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([to_words, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    known = tokenizer.get_vocab(with_added_tokens=True)
    ids = {name: known[name] for name in (*special, *_WORDS)}

    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(ids[name]): {
                "content": name,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for name in special
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": tokenizer_class,
        "unk_token": None,
        **(fields or {}),
    }
    text = json.dumps(config, ensure_ascii=False, indent=1)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    return ids
