"""Building tiny MOSS-TTS Nano checkpoints: files and tensor names of the published ones, random weights. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.modelkit.tiny_weights import Drawn, Tensors
from omni_models_moss.checkpoint import CODEBOOK_SIZE
from omni_models_moss.codec.tiny import NANO_CONFIG
from omni_models_moss.local.tiny import (
    CONSTANT_CHANNEL,
    DECISION_GAIN,
    DECISION_LEAD,
    VARIANT,
    gpt2_config,
    local_tensors,
)
from omni_models_moss.text import SENTENCEPIECE
from omni_models_moss.tiny_parts import HIDDEN, TEXT_SPREAD, begin_checkpoint, gpt2_block, write_checkpoint
from omni_models_moss.tiny_sentencepiece import PIECES, write_model

_NUM_CODES = 16
_CODEC_NAME = "OpenMOSS-Team/MOSS-Audio-Tokenizer-Nano"
_LAYERS = 2
_HEADS = 2
"""As wide as vLLM's attention on a CPU wants them."""


def build_tiny(folder: Path, variant: str, seed: int) -> None:
    """Write a tiny checkpoint; equal arguments give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        variant: `default`.
        seed: Of the weights.

    Raises:
        ConfigError: There is no such variant.
    """
    begin_checkpoint(folder, variant, (VARIANT,), "MOSS-TTS Nano")
    config = _config(write_model(folder / SENTENCEPIECE))
    write_checkpoint(folder, config, _tensors(config), NANO_CONFIG, seed)


def _config(vocab_size: int) -> dict[str, Any]:
    ids = {name: index for index, name in enumerate(PIECES)}
    sizes = gpt2_config(
        vocab_size,
        4096,
        n_layer=_LAYERS,
        n_head=_HEADS,
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        rope_base=10000.0,
    )
    return {
        "model_type": "moss_tts_nano",
        "architectures": ["MossTTSNanoForCausalLM"],
        "n_vq": _NUM_CODES,
        "audio_vocab_size": CODEBOOK_SIZE,
        "audio_codebook_sizes": [CODEBOOK_SIZE] * _NUM_CODES,
        "audio_pad_token_id": CODEBOOK_SIZE,
        "pad_token_id": ids["<pad>"],
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "audio_user_slot_token_id": ids["<|user_slot|>"],
        "audio_assistant_slot_token_id": ids["<|assistant_slot|>"],
        "audio_tokenizer_type": "moss-audio-tokenizer-nano",
        "audio_tokenizer_pretrained_name_or_path": _CODEC_NAME,
        "audio_tokenizer_sample_rate": 48000,
        "local_transformer_layers": 1,
        "dtype": "bfloat16",
        "gpt2_config": sizes,
    }


def _tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the talker's tensors, by name, with values that make each of them matter."""
    found = local_tensors(_NUM_CODES)
    for layer in range(_LAYERS):
        found |= gpt2_block(f"transformer.h.{layer}")
    found |= {"transformer.ln_f.weight": Drawn.norm(HIDDEN), "transformer.ln_f.bias": Drawn.bias(HIDDEN)}
    slot, end = config["audio_assistant_slot_token_id"], config["audio_end_token_id"]
    # The rows that decide are both read and chosen from; they are as wide apart as the two rows of Local's head.
    factor = DECISION_GAIN / HIDDEN**0.5 / TEXT_SPREAD
    lead: dict[tuple[int, ...], float] = {(slot, CONSTANT_CHANNEL): DECISION_LEAD, (end, CONSTANT_CHANNEL): 0.0}
    shape = (config["gpt2_config"]["vocab_size"], HIDDEN)
    found["transformer.wte.weight"] = Drawn(shape, spread=TEXT_SPREAD, rows={slot: factor, end: factor}, values=lead)
    return found
