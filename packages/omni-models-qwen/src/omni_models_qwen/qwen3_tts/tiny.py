"""Building tiny Qwen3-TTS checkpoints: the files and tensor names of the published ones, a few megabytes, random weights.

They speak noise, but everything that can go wrong with a real checkpoint's layout can go wrong with them: text, voice,
instructions and reference change what is said, the talker ends by itself after some dozens of frames, and the audio is as
loud as speech. Needs neither torch nor transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError
from omni_core.modelkit.tiny_tokenizer import write_tokenizer
from omni_core.modelkit.tiny_weights import write_json, write_tensors
from omni_models_qwen.qwen3_tts.pipeline import CODEC_FOLDER
from omni_models_qwen.qwen3_tts.tiny_layout import codec_tensors, speaker_tensors, talker_tensors
from omni_models_qwen.talking.tiny_parts import CODEC

VARIANTS = ("custom_voice", "base", "voice_design")

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
"""All of the published tokenizers', though few have a meaning here: no id may be where a program takes it to be."""

_LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
    "beijing_dialect": 2074,
    "sichuan_dialect": 2062,
}
_VOICES = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}

_ATTENTION = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""vLLM's attention on a CPU takes no head narrower than 32."""

_TALKER: dict[str, Any] = {
    "code_predictor_config": {
        "vocab_size": 2048,
        "hidden_size": 32,  # unlike the talker's, so that the projection between the two is there
        "intermediate_size": 64,
        **_ATTENTION,
        "num_code_groups": 16,
        "max_position_embeddings": 65536,
        "rope_theta": 1000000,
        "rope_scaling": None,
    },
    "vocab_size": 3072,
    "hidden_size": 48,
    "intermediate_size": 96,
    **_ATTENTION,
    "text_hidden_size": 64,
    "num_code_groups": 16,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000,
    "position_id_per_seconds": 13,
    "rope_scaling": {"interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default", "type": "default"},
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_language_id": _LANGUAGES,
}

_SPEAKER: dict[str, Any] = {
    "mel_dim": 128,
    "enc_dim": _TALKER["hidden_size"],
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_attention_channels": 16,
    "enc_res2net_scale": 4,
    "enc_se_channels": 16,
    "sample_rate": 24000,
}

_CODEC: dict[str, Any] = {
    "model_type": "qwen3_tts_tokenizer_12hz",
    "encoder_config": {
        "hidden_size": 32,
        "num_filters": 4,
        "num_residual_layers": 1,
        "upsampling_ratios": [8, 6, 5, 4],
        "codebook_size": 2048,
        "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_quantizers": 32,
        "num_semantic_quantizers": 1,
        "sampling_rate": 24000,
        "frame_rate": 12.5,
        "_frame_rate": 12.5,
        "upsample_groups": 32,
        "max_position_embeddings": 8000,
        "sliding_window": 250,
        "audio_channels": 1,
        "use_causal_conv": True,
    },
    "decoder_config": {**CODEC, "codebook_dim": 16, "latent_dim": 48, "head_dim": 32, "num_semantic_quantizers": 1},
    "encoder_valid_num_quantizers": 16,
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "decode_upsample_rate": 1920,
    "encode_downsample_rate": 1920,
    "architectures": ["Qwen3TTSTokenizerV2Model"],
}

_GENERATION = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}

_PROCESSOR = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}

_CODEC_PROCESSOR = {
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
    "chunk_length_s": None,
    "overlap": None,
}


def build_tiny(folder: Path, variant: str, seed: int) -> None:
    """Write a tiny checkpoint; equal arguments give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        variant: `custom_voice`, `base` or `voice_design`.
        seed: Of the weights.

    Raises:
        ConfigError: There is no such variant.
    """
    if variant not in VARIANTS:
        raise ConfigError(
            f"there is no tiny Qwen3-TTS variant {variant!r}", where="--variant", hint=f"choose one of {', '.join(VARIANTS)}"
        )
    codec = folder / CODEC_FOLDER
    codec.mkdir(parents=True, exist_ok=True)
    config = _config(variant, write_tokenizer(folder, _SPECIAL, "Qwen2Tokenizer"))
    tensors = talker_tensors(config["talker_config"])
    if variant == "base":
        tensors |= speaker_tensors(_SPEAKER)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", _GENERATION)
    write_json(folder / "preprocessor_config.json", _PROCESSOR)
    write_tensors(folder / "model.safetensors", tensors, seed=seed, dtype="BF16")
    write_json(codec / "config.json", _CODEC)
    write_json(codec / "preprocessor_config.json", _CODEC_PROCESSOR)
    write_tensors(codec / "model.safetensors", codec_tensors(_CODEC), seed=seed, dtype="F32")


def _config(variant: str, ids: Mapping[str, int]) -> dict[str, Any]:
    """Return config.json for a tokenizer with these ids; the text vocabulary is rounded up as in the real checkpoints."""
    talker = copy.deepcopy(_TALKER)
    talker["text_vocab_size"] = -(-(max(ids.values()) + 1) // 64) * 64
    voices = _VOICES if variant == "custom_voice" else {}
    talker["spk_id"] = dict(voices)
    talker["spk_is_dialect"] = {name: _DIALECTS.get(name, False) for name in voices}
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "assistant_token_id": ids["assistant"],
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "1b7",
        "tts_model_type": variant,
        "talker_config": talker,
    }
    return config | ({"speaker_encoder_config": _SPEAKER} if variant == "base" else {})
