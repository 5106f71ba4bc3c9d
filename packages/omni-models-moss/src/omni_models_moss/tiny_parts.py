"""Parts of tiny MOSS-TTS checkpoints. They speak noise, but text and reference change what is said. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError
from omni_core.modelkit.tiny_weights import Drawn, Tensors, write_json, write_tensors
from omni_models_moss.codec.tiny import write_codec
from omni_models_moss.pipeline import CODEC_FOLDER

SPECIAL = (
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
HIDDEN, INNER = 64, 96

ATTENTION_GAIN = 3.0
CODE_SPREAD = 1.5
"""Of the codes' vectors, which are both read and chosen from: logits are wide, and a frame outweighs the text beside it."""
TEXT_SPREAD = 0.7


def begin_checkpoint(folder: Path, variant: str, known: Collection[str], model: str) -> None:
    """Check what was asked for with `--variant`, and make the folder.

    Raises:
        ConfigError: There is no such variant.
    """
    if variant not in known:
        raise ConfigError(
            f"there is no tiny {model} variant {variant!r}", where="--variant", hint=f"leave it out, or say {', '.join(known)}"
        )
    folder.mkdir(parents=True, exist_ok=True)


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Tensors, codec: Mapping[str, Any], seed: int) -> None:
    """Write config.json, the talker's tensors, and the codec into a folder inside, where the published one is elsewhere."""
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors, seed=seed, dtype="BF16")
    write_codec(folder / CODEC_FOLDER, seed, codec)


def rounded_vocab(ids: Iterable[int], least: int = 0) -> int:
    """Return the size of a vocabulary with these ids, rounded up as in the real checkpoints."""
    return -(-max(max(ids) + 1, least) // 64) * 64


def qwen3_config(vocab_size: int) -> dict[str, Any]:
    """Return a tiny backbone's part of config.json."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # vLLM's attention on a CPU takes no narrower head
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
    }


def gpt2_block(name: str) -> Tensors:
    """Return the tensors of a block of the GPT-2 kind, under `name`."""
    found: Tensors = {}
    for part, outputs, inputs in (
        ("attn.c_attn", 3 * HIDDEN, HIDDEN),
        ("attn.c_proj", HIDDEN, HIDDEN),
        ("mlp.fc_in", INNER, HIDDEN),
        ("mlp.fc_out", HIDDEN, INNER),
    ):
        found[f"{name}.{part}.weight"] = Drawn.product(outputs, inputs)
        found[f"{name}.{part}.bias"] = Drawn.bias(outputs)
    for norm in ("ln_1", "ln_2"):
        found |= {f"{name}.{norm}.weight": Drawn.norm(HIDDEN), f"{name}.{norm}.bias": Drawn.bias(HIDDEN)}
    return found
