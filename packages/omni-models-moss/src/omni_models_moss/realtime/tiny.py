"""Building tiny MOSS-TTS Realtime checkpoints: files and tensor names of the published ones, random weights. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.modelkit.tiny_tokenizer import write_tokenizer
from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors
from omni_models_moss.checkpoint import CODEBOOK_SIZE
from omni_models_moss.codec.tiny import V1_CONFIG
from omni_models_moss.tiny_parts import (
    ATTENTION_GAIN,
    HIDDEN,
    TEXT_SPREAD,
    begin_checkpoint,
    qwen3_config,
    rounded_vocab,
    write_checkpoint,
)

VARIANT = "default"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_pad|>", "<|text_pad|>")
_NUM_CODES = 16
_VOCAB = CODEBOOK_SIZE + 3
"""The codes, and the marks for none, the beginning and the end."""
_CODE_SPREAD = 0.4
_END_FACTOR = 2.5
"""How much wider the end's logit is than those of the codes: it wins about once in thirty frames."""


def build_tiny(folder: Path, variant: str, seed: int) -> None:
    """Write a tiny checkpoint; equal arguments give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        variant: `default`.
        seed: Of the weights.

    Raises:
        ConfigError: There is no such variant.
    """
    begin_checkpoint(folder, variant, (VARIANT,), "MOSS-TTS Realtime")
    config = _config(write_tokenizer(folder, _SPECIAL, "Qwen2Tokenizer"))
    write_checkpoint(folder, config, _tensors(config), V1_CONFIG, seed)


def _config(ids: Mapping[str, int]) -> dict[str, Any]:
    # First codes are sampled in the place of text, so that there are at least as many text ids.
    backbone = qwen3_config(rounded_vocab(ids.values(), _VOCAB))
    local = {name: value for name, value in backbone.items() if name not in ("vocab_size", "tie_word_embeddings")}
    return {
        "model_type": "moss_tts_realtime",
        "architectures": ["MossTTSRealtime"],
        "rvq": _NUM_CODES,
        "audio_vocab_size": _VOCAB,
        "audio_pad_token": CODEBOOK_SIZE,
        "reference_audio_pad": ids["<|audio_pad|>"],
        "text_pad": ids["<|text_pad|>"],
        "dtype": "bfloat16",
        "language_config": backbone,
        "local_config": {
            **local,
            "max_position_embeddings": 33,
            "rvq": _NUM_CODES,
            "audio_vocab_size": _VOCAB,
            "audio_pad_token": CODEBOOK_SIZE,
        },
    }


def _tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the talker's tensors, by name, with values that make each of them matter."""
    found = decoder_tensors("language_model", config["language_config"], attention_gain=ATTENTION_GAIN)
    found |= decoder_tensors("local_transformer.model", config["local_config"], attention_gain=ATTENTION_GAIN)
    found["embed_tokens.0.weight"] = Drawn.table(config["language_config"]["vocab_size"], HIDDEN, spread=TEXT_SPREAD)
    end = {_VOCAB - 1: _END_FACTOR}
    for book in range(_NUM_CODES):
        found[f"embed_tokens.{book + 1}.weight"] = Drawn.table(_VOCAB, HIDDEN, spread=_CODE_SPREAD)
        head = Drawn((_VOCAB, HIDDEN), spread=2.0 / HIDDEN**0.5, rows=end if book == 0 else {})
        found[f"local_transformer.local_lm_heads.{book}.weight"] = head
    for book in range(_NUM_CODES - 1):
        found[f"local_transformer.model.embed_tokens.{book}.weight"] = Drawn.table(_VOCAB, HIDDEN)
    return found
