"""Building tiny checkpoints of the delay pattern: the files and tensor names of the published ones, random weights.

They speak noise: a sound begins at once, ends after some dozens of frames, and then the answer ends. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from omni_core.modelkit.tiny_tokenizer import write_tokenizer
from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors, write_json
from omni_models_moss.checkpoint import CODEBOOK_SIZE
from omni_models_moss.codec.tiny import V1_CONFIG
from omni_models_moss.tiny_parts import (
    ATTENTION_GAIN,
    HIDDEN,
    SPECIAL,
    TEXT_SPREAD,
    begin_checkpoint,
    qwen3_config,
    rounded_vocab,
    write_checkpoint,
)

VARIANTS = {
    "tts": ("MOSS-TTS", 32),
    "ttsd": ("MOSS-TTSD-v1.0", 16),
    "voice_generator": ("MOSS-VoiceGenerator", 16),
    "sound_effect": ("MOSS-SoundEffect", 16),
}
"""Names of the repositories, by which the checkpoints are told apart, and numbers of codebooks."""
_DELAY_SLOT = "<|fim_suffix|>"
_CODE_SPREAD = 4.0
"""Of the sum of a row's embeddings of codes: what was said outweighs the text id beside it."""

_MARK = 16.0
"""How much of a text id that decides on the next one is in a channel of its own."""
_AFTER_ANSWER, _AFTER_SOUND, _IN_SOUND = range(3)
"""Those channels."""
_FORCE = 4.0
_SLOT_LEAD = 1.4
"""How much the slot of another frame listens to `_IN_SOUND`: the first delay slot wins about once in thirty frames."""
_SLOT_SPREAD = 0.25


def build_tiny(folder: Path, variant: str, seed: int) -> None:
    """Write a tiny checkpoint; equal arguments give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        variant: One of `VARIANTS`.
        seed: Of the weights.

    Raises:
        ConfigError: There is no such variant.
    """
    begin_checkpoint(folder, variant, VARIANTS, "MOSS-TTS")
    name, num_codes = VARIANTS[variant]
    config = _config(write_tokenizer(folder, (*SPECIAL, _DELAY_SLOT), "Qwen2Tokenizer"), name, num_codes)
    write_json(folder / "processor_config.json", {"processor_class": "MossTTSDelayProcessor"})
    (line_break,) = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("\n", add_special_tokens=False).ids
    write_checkpoint(folder, config, _tensors(config, line_break), V1_CONFIG, seed)


def _config(ids: Mapping[str, int], name: str, num_codes: int) -> dict[str, Any]:
    return {
        "_name_or_path": f"OpenMOSS-Team/{name}",
        "model_type": "moss_tts_delay",
        "architectures": ["MossTTSDelayModel"],
        "n_vq": num_codes,
        "audio_vocab_size": CODEBOOK_SIZE,
        "audio_pad_code": CODEBOOK_SIZE,
        "pad_token_id": ids["<|endoftext|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "audio_start_token_id": ids["<|vision_start|>"],
        "audio_end_token_id": ids["<|vision_end|>"],
        "audio_user_slot_token_id": ids["<|vision_pad|>"],
        "audio_assistant_gen_slot_token_id": ids["<|video_pad|>"],
        "audio_assistant_delay_slot_token_id": ids[_DELAY_SLOT],
        "sampling_rate": 24000,
        "dtype": "bfloat16",
        "language_config": qwen3_config(rounded_vocab(ids.values())),
    }


def _tensors(config: Mapping[str, Any], line_break: int) -> Tensors:
    """Return the talker's tensors, by name, with values that make each of them matter."""
    backbone = config["language_config"]
    found = decoder_tensors("language_model", backbone, attention_gain=ATTENTION_GAIN)
    start, end, stop, slot, delay = (
        config[f"{name}_token_id"]
        for name in ("audio_start", "audio_end", "im_end", "audio_assistant_gen_slot", "audio_assistant_delay_slot")
    )
    marks: dict[tuple[int, ...], float] = {
        (line_break, _AFTER_ANSWER): _MARK,
        (end, _AFTER_SOUND): _MARK,
        (start, _IN_SOUND): _MARK,
        (slot, _IN_SOUND): _MARK,
    }
    shape = (backbone["vocab_size"], HIDDEN)
    found["language_model.embed_tokens.weight"] = Drawn(shape, spread=TEXT_SPREAD, values=marks)
    forces: dict[tuple[int, ...], float] = {
        (start, _AFTER_ANSWER): _FORCE,
        (stop, _AFTER_SOUND): _FORCE,
        (slot, _IN_SOUND): _SLOT_LEAD,
        (delay, _IN_SOUND): 0.0,
    }
    spreads = dict.fromkeys((slot, delay), _SLOT_SPREAD * HIDDEN**0.5)
    found["lm_heads.0.weight"] = Drawn(shape, spread=HIDDEN**-0.5, rows=spreads, values=forces)
    table, quiet = (CODEBOOK_SIZE + 1, HIDDEN), dict.fromkeys((_AFTER_ANSWER, _AFTER_SOUND, _IN_SOUND), 0.0)
    for book in range(config["n_vq"]):
        found[f"emb_ext.{book}.weight"] = Drawn(table, spread=_CODE_SPREAD / config["n_vq"] ** 0.5, columns=quiet)
        found[f"lm_heads.{book + 1}.weight"] = Drawn.product(CODEBOOK_SIZE + 1, HIDDEN, gain=2.0)
    return found
