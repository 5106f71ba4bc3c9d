"""Building tiny MOSS-TTS Local checkpoints: the files and tensor names of the published ones, a few megabytes, random weights.

They speak noise, but text, instructions and reference change what is said, and the talker ends by itself after some dozens of
frames. The codec is in the folder of the checkpoint, where the published one has a repository of its own. Needs neither torch
nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError
from omni_core.modelkit.tiny_tokenizer import write_tokenizer
from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors, write_tensors
from omni_models_moss.codec.location import CODEC_FOLDER
from omni_models_moss.codec.tiny import write_codec

VARIANT = "default"

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
)
_HIDDEN, _INNER = 64, 96
_NUM_CODES, _CODEBOOK_SIZE = 12, 1024
_CODEC_NAME = "OpenMOSS-Team/MOSS-Audio-Tokenizer-v2"

_ATTENTION_GAIN = 3.0
_CODE_SPREAD = 1.5
"""Of the codes' vectors, which are both read and chosen from: logits are wide, and a frame outweighs the text beside it."""
_TEXT_SPREAD = 0.7
_DECISION_GAIN = 2.0
_DECISION_LEAD = 4.0
"""How far "another frame" leads on average, against a spread of about 2.8: the end wins about once in thirty frames."""
_CONSTANT_CHANNEL = 0
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
    if variant != VARIANT:
        raise ConfigError(
            f"there is no tiny MOSS-TTS Local variant {variant!r}", where="--variant", hint=f"leave it out, or say {VARIANT}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(write_tokenizer(folder, _SPECIAL, "Qwen2Tokenizer"))
    _write_json(folder / "config.json", config)
    codec = {"processor_class": "MossTTSLocalProcessor", "audio_tokenizer_name_or_path": _CODEC_NAME}
    _write_json(folder / "processor_config.json", codec)
    write_tensors(folder / "model.safetensors", _tensors(config), seed=seed, dtype="BF16")
    write_codec(folder / CODEC_FOLDER, seed)


def _config(ids: Mapping[str, int]) -> dict[str, Any]:
    """Return config.json for a tokenizer with these ids; the vocabulary is rounded up as in the real checkpoints."""
    vocab_size = -(-(max(ids.values()) + 1) // 64) * 64
    backbone = {
        "vocab_size": vocab_size,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # vLLM's attention on a CPU takes no narrower head
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
    }
    local = {
        "vocab_size": vocab_size,
        "n_embd": _HIDDEN,
        "n_layer": 1,
        "n_head": 4,
        "n_inner": _INNER,
        "n_positions": _NUM_CODES + 1,
        "n_ctx": _NUM_CODES + 1,
        "activation_function": "silu",
        "layer_norm_epsilon": 1e-6,
        "position_embedding_type": "rope",
        "rope_base": 1000000.0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    return {
        "model_type": "moss_tts_local",
        "architectures": ["MossTTSLocalModel"],
        "n_vq": _NUM_CODES,
        "audio_vocab_size": _CODEBOOK_SIZE,
        "audio_codebook_sizes": [_CODEBOOK_SIZE] * _NUM_CODES,
        "audio_pad_token_id": _CODEBOOK_SIZE,
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
        "gpt2_config": local,
    }


def _tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the talker's tensors, by name, with values that make each of them matter."""
    backbone = config["qwen3_config"]
    block = "local_transformer.h.0"
    found = decoder_tensors("transformer", backbone, attention_gain=_ATTENTION_GAIN)
    found["transformer.embed_tokens.weight"] = Drawn.table(backbone["vocab_size"], _HIDDEN, spread=_TEXT_SPREAD)
    for book in range(_NUM_CODES):
        found[f"audio_embeddings.{book}.weight"] = Drawn.table(_CODEBOOK_SIZE, _HIDDEN, spread=_CODE_SPREAD)
    for name, outputs, inputs in (
        ("attn.c_attn", 3 * _HIDDEN, _HIDDEN),
        ("attn.c_proj", _HIDDEN, _HIDDEN),
        ("mlp.fc_in", _INNER, _HIDDEN),
        ("mlp.fc_out", _HIDDEN, _INNER),
    ):
        found[f"{block}.{name}.weight"] = Drawn.product(outputs, inputs)
        found[f"{block}.{name}.bias"] = Drawn.bias(outputs)
    for norm in (f"{block}.ln_1", f"{block}.ln_2"):
        found |= {f"{norm}.weight": Drawn.norm(_HIDDEN), f"{norm}.bias": Drawn.bias(_HIDDEN)}
    constant: tuple[int, ...] = (_CONSTANT_CHANNEL,)
    found["local_transformer.ln_f.weight"] = Drawn((_HIDDEN,), center=1.0, spread=0.1, values={constant: 0.0})
    found["local_transformer.ln_f.bias"] = Drawn((_HIDDEN,), spread=0.05, values={constant: 1.0})
    lead: dict[tuple[int, ...], float] = {(0, _CONSTANT_CHANNEL): _DECISION_LEAD, (1, _CONSTANT_CHANNEL): 0.0}
    found["local_text_lm_head.weight"] = Drawn((2, _HIDDEN), spread=_DECISION_GAIN / _HIDDEN**0.5, values=lead)
    return found


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
