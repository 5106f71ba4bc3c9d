"""Building tiny MOSS-TTS Local checkpoints: the files and tensor names of the published ones, a few megabytes, random weights.

They speak noise, but text, instructions and reference change what is said, and the talker ends by itself after some dozens of
frames. The codec is in the folder of the checkpoint, where the published one has a repository of its own. Needs neither torch
nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.modelkit.tiny_tokenizer import write_tokenizer
from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors, write_json
from omni_models_moss.checkpoint import CODEBOOK_SIZE
from omni_models_moss.codec.tiny import CONFIG
from omni_models_moss.tiny_parts import (
    ATTENTION_GAIN,
    CODE_SPREAD,
    HIDDEN,
    INNER,
    SPECIAL,
    TEXT_SPREAD,
    begin_checkpoint,
    gpt2_block,
    qwen3_config,
    rounded_vocab,
    write_checkpoint,
)

VARIANT = "default"
_NUM_CODES = 12
_CODEC_NAME = "OpenMOSS-Team/MOSS-Audio-Tokenizer-v2"

DECISION_GAIN = 2.0
DECISION_LEAD = 4.0
"""How far "another frame" leads on average, against a spread of about 2.8: the end wins about once in thirty frames."""
CONSTANT_CHANNEL = 0
"""A channel that is 1 whatever was read; only the lead of "another frame" listens to it."""


def build_tiny(folder: Path, variant: str, seed: int) -> None:
    """Write a tiny checkpoint; equal arguments give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        variant: `default`.
        seed: Of the weights.

    Raises:
        ConfigError: There is no such variant.
    """
    begin_checkpoint(folder, variant, (VARIANT,), "MOSS-TTS Local")
    config = _config(write_tokenizer(folder, SPECIAL, "Qwen2Tokenizer"))
    codec = {"processor_class": "MossTTSLocalProcessor", "audio_tokenizer_name_or_path": _CODEC_NAME}
    write_json(folder / "processor_config.json", codec)
    write_checkpoint(folder, config, _tensors(config), CONFIG, seed)


def gpt2_config(vocab_size: int, positions: int, **values: Any) -> dict[str, Any]:
    """Return a part of config.json with the names of GPT-2."""
    return {
        "vocab_size": vocab_size,
        "n_embd": HIDDEN,
        "n_layer": 1,
        "n_head": 4,
        "n_inner": INNER,
        "n_positions": positions,
        "n_ctx": positions,
        "activation_function": "silu",
        "layer_norm_epsilon": 1e-6,
        "position_embedding_type": "rope",
        "rope_base": 1000000.0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        **values,
    }


def local_tensors(num_codes: int) -> Tensors:
    """Return the tensors of the local transformer and of the codes' embeddings."""
    found = gpt2_block("local_transformer.h.0")
    for book in range(num_codes):
        found[f"audio_embeddings.{book}.weight"] = Drawn.table(CODEBOOK_SIZE, HIDDEN, spread=CODE_SPREAD)
    constant: tuple[int, ...] = (CONSTANT_CHANNEL,)
    found["local_transformer.ln_f.weight"] = Drawn((HIDDEN,), center=1.0, spread=0.1, values={constant: 0.0})
    found["local_transformer.ln_f.bias"] = Drawn((HIDDEN,), spread=0.05, values={constant: 1.0})
    return found


def _config(ids: Mapping[str, int]) -> dict[str, Any]:
    """Return config.json for a tokenizer with these ids."""
    vocab_size = rounded_vocab(ids.values())
    backbone = qwen3_config(vocab_size)
    return {
        "model_type": "moss_tts_local",
        "architectures": ["MossTTSLocalModel"],
        "n_vq": _NUM_CODES,
        "audio_vocab_size": CODEBOOK_SIZE,
        "audio_codebook_sizes": [CODEBOOK_SIZE] * _NUM_CODES,
        "audio_pad_token_id": CODEBOOK_SIZE,
        "pad_token_id": ids["<|endoftext|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "audio_user_slot_token_id": ids["<|vision_pad|>"],
        "audio_assistant_slot_token_id": ids["<|video_pad|>"],
        "sampling_rate": 48000,
        "audio_tokenizer_name_or_path": _CODEC_NAME,
        "attn_implementation": "eager",
        "local_text_head_mode": "binary",
        "local_transformer_layers": 1,
        "dtype": "bfloat16",
        "qwen3_config": backbone,
        "language_config": backbone,
        "gpt2_config": gpt2_config(vocab_size, _NUM_CODES + 1),
    }


def _tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the talker's tensors, by name, with values that make each of them matter."""
    backbone = config["qwen3_config"]
    found = decoder_tensors("transformer", backbone, attention_gain=ATTENTION_GAIN) | local_tensors(_NUM_CODES)
    found["transformer.embed_tokens.weight"] = Drawn.table(backbone["vocab_size"], HIDDEN, spread=TEXT_SPREAD)
    lead: dict[tuple[int, ...], float] = {(0, CONSTANT_CHANNEL): DECISION_LEAD, (1, CONSTANT_CHANNEL): 0.0}
    found["local_text_lm_head.weight"] = Drawn((2, HIDDEN), spread=DECISION_GAIN / HIDDEN**0.5, values=lead)
    return found
