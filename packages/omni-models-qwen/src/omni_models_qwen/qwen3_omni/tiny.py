"""Building tiny Qwen3-Omni checkpoints: the files and tensor names of the published ones, some ten megabytes, random weights.

They write and speak noise, but everything that can go wrong with a real checkpoint's layout can go wrong with them: text,
audio, images and voices change the answer. Needs neither torch nor transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError
from omni_core.modelkit.tiny_tokenizer import write_tokenizer
from omni_core.modelkit.tiny_weights import write_tensors
from omni_models_qwen.qwen3_omni.tiny_layout import codec_tensors, talker_tensors, thinker_tensors
from omni_models_qwen.talking.tiny_chat import media_ids, processor, text_ends, tokenizer_fields, write_settings
from omni_models_qwen.talking.tiny_parts import CODEC

VARIANTS = ("instruct", "thinking")
"""With a talker, and without."""

_MARKS = {
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "audio_token": "<|audio_pad|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<|audio_pad|>",
)

_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""vLLM's attention on a CPU takes no head narrower than 32."""
_ROPE = {"mrope_section": [6, 5, 5], "interleaved": True, "mrope_interleaved": True, "rope_type": "default"}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
_COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_theta": 1000000,
    "rope_scaling": _ROPE,
}

_THINKER: dict[str, Any] = {
    "audio_config": {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "output_dim": 64,
        "downsample_hidden_size": 16,
        "num_mel_bins": 128,
        "n_window": 50,
        "n_window_infer": 800,
        "max_source_positions": 1500,
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
        "image_size": 128,
        "apply_vit_abs_pos_embed": True,
        "tokens_per_second": 2,
    },
    "text_config": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "shared_expert_intermediate_size": 0,
        "use_qk_norm": True,
        **_ATTENTION,
        **_EXPERTS,
        **_COMMON,
    },
}

_TALKER: dict[str, Any] = {
    "accept_hidden_layer": 2,
    "num_code_groups": 16,
    "spatial_merge_size": 2,
    "thinker_hidden_size": 64,
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
    "text_config": {
        "vocab_size": 3072,
        "hidden_size": 48,  # unlike the thinker's, so that the projections between the two matter
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "shared_expert_intermediate_size": 32,
        **_ATTENTION,
        **_EXPERTS,
        **_COMMON,
    },
    "code_predictor_config": {
        "vocab_size": 2048,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_code_groups": 16,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        **_ATTENTION,
    },
}

_CODE2WAV: dict[str, Any] = {**CODEC, "rms_norm_eps": 1e-05}

_GENERATION = {
    "do_sample": True,
    "talker_max_new_tokens": 4096,
    "talker_do_sample": True,
    "talker_top_k": 50,
    "talker_top_p": 1.0,
    "talker_temperature": 0.9,
    "talker_repetition_penalty": 1.05,
}


def build_tiny(folder: Path, variant: str, seed: int) -> None:
    """Write a tiny checkpoint; equal arguments give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        variant: `instruct`, which speaks, or `thinking`, which has no talker.
        seed: Of the weights.

    Raises:
        ConfigError: There is no such variant.
    """
    if variant not in VARIANTS:
        raise ConfigError(
            f"there is no tiny Qwen3-Omni variant {variant!r}", where="--variant", hint=f"choose one of {', '.join(VARIANTS)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(folder, _SPECIAL, "Qwen2Tokenizer", tokenizer_fields(_MARKS))
    config = _config(ids, speaks=variant == "instruct")
    tensors = thinker_tensors(config["thinker_config"], ids["<|im_end|>"])
    if config["enable_audio_output"]:
        tensors |= talker_tensors(config["talker_config"]) | codec_tensors(config["code2wav_config"])
    write_settings(
        folder,
        _MARKS,
        config=config,
        generation={**_GENERATION, **text_ends(ids)},
        processor=processor("Qwen3OmniMoeProcessor", patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3),
    )
    write_tensors(folder / "model.safetensors", tensors, seed=seed, dtype="BF16")


def _config(ids: Mapping[str, int], *, speaks: bool) -> dict[str, Any]:
    """Return config.json for a tokenizer with these ids; the vocabulary is rounded up as in the real checkpoints."""
    shared = media_ids(_MARKS, ids, kind="id", positions_per_second=13)
    thinker = copy.deepcopy(_THINKER) | shared | {"user_token_id": ids["user"]}
    thinker["text_config"]["vocab_size"] = -(-(max(ids.values()) + 1) // 64) * 64
    config = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "bfloat16",
        "enable_audio_output": speaks,
        "assistant_token_id": ids["assistant"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "thinker_config": thinker,
    }
    return config | ({"talker_config": _TALKER | shared, "code2wav_config": _CODE2WAV} if speaks else {})
