"""Building tiny Qwen2.5-Omni checkpoints: the files and tensor names of the published ones, six megabytes, random weights.

They write and speak noise, but everything that can go wrong with a real checkpoint's layout can go wrong with them: text,
audio, images and voices change the answer. Only the file of voices needs torch, whose format it has.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.errors import DependencyError
from omni_core.modelkit.tiny_tokenizer import write_tokenizer
from omni_core.modelkit.tiny_weights import write_tensors
from omni_models_qwen.qwen2_5_omni.chat import VOICES_FILE
from omni_models_qwen.qwen2_5_omni.tiny_layout import codec_tensors, talker_tensors, thinker_tensors
from omni_models_qwen.talking.tiny_chat import media_ids, processor, text_ends, tokenizer_fields, write_settings

VOICES = ("Chelsie", "Ethan")
_MARKS = {
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "audio_token": "<|AUDIO|>",
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}
_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|vision_pad|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
)
_IMAGE_MEAN, _IMAGE_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_WIDTH = 128
_ROPE = {"mrope_section": [4, 6, 6], "rope_type": "default", "type": "default"}
_COMMON: dict[str, Any] = {
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,  # of 32: vLLM's attention on a CPU takes no narrower ones
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 4096,
    "rope_theta": 1000000.0,
    "rope_scaling": _ROPE,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
_THINKER: dict[str, Any] = {
    "model_type": "qwen2_5_omni_thinker",
    "text_config": {"model_type": "qwen2_5_omni_text", "hidden_size": _WIDTH, "max_window_layers": 2, **_COMMON},
    "audio_config": {
        "model_type": "qwen2_5_omni_audio_encoder",
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "output_dim": _WIDTH,
        "num_mel_bins": 128,
        "n_window": 100,
        "max_source_positions": 1500,
    },
    "vision_config": {
        "model_type": "qwen2_5_omni_vision_encoder",
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": _WIDTH,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
        "in_channels": 3,
    },
}
_TALKER: dict[str, Any] = {
    "model_type": "qwen2_5_omni_talker",
    "vocab_size": 8448,
    "embedding_size": _WIDTH,
    "hidden_size": 48,  # unlike the thinker's, so that the projection between the two matters
    "head_dim": 32,
    "spatial_merge_size": 2,
    "tts_codec_pad_token_id": 8292,
    "tts_codec_start_token_id": 8293,
    "tts_codec_end_token_id": 8294,
    "tts_codec_mask_token_id": 8296,
    **_COMMON,
}
_TOKEN2WAV: dict[str, Any] = {
    "model_type": "qwen2_5_omni_token2wav",
    "dit_config": {
        "model_type": "qwen2_5_omni_dit",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
        "ff_mult": 2,
        "emb_dim": 32,
        "block_size": 24,
        "look_ahead_layers": [1],
        "look_backward_layers": [0],
        "repeats": 2,
        "num_embeds": 8193,
        "mel_dim": 80,
        "enc_dim": 32,
        "enc_emb_dim": 192,
        "enc_channels": [32, 32, 32, 32, 96],
        "enc_kernel_sizes": [5, 3, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 4, 1],
        "enc_attention_channels": 16,
        "enc_res2net_scale": 2,
        "enc_se_channels": 16,
        "max_position_embeddings": 4096,
    },
    "bigvgan_config": {
        "model_type": "qwen2_5_omni_bigvgan",
        "mel_dim": 80,
        "upsample_initial_channel": 64,
        "upsample_rates": [5, 3, 2, 2, 2, 2],
        "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4],
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    },
}


def build_tiny(folder: Path, variant: str, seed: int) -> None:
    """Write a tiny checkpoint; equal arguments give equal files.

    Args:
        folder: Where to; it is made if need be, and files of the same names are replaced.
        variant: `default`; there is one kind only.
        seed: Of the weights.

    Raises:
        DependencyError: torch is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(folder, _SPECIAL, "Qwen2Tokenizer", tokenizer_fields(_MARKS))
    known = max(ids.values()) + 1
    config = _config(ids, known)
    tensors = thinker_tensors(config["thinker_config"], ids["<|im_end|>"], known)
    tensors |= talker_tensors(config["talker_config"], _TOKEN2WAV["dit_config"]["num_embeds"]) | codec_tensors(_TOKEN2WAV)
    write_settings(
        folder,
        _MARKS,
        config=config,
        generation={**text_ends(ids), "do_sample": False},
        processor=processor("Qwen2_5OmniProcessor", patch_size=14, image_mean=_IMAGE_MEAN, image_std=_IMAGE_STD),
    )
    _write_voices(folder / VOICES_FILE, known + 3, seed)
    write_tensors(folder / "model.safetensors", tensors, seed=seed, dtype="BF16")


def _config(ids: Mapping[str, int], known: int) -> dict[str, Any]:
    """Return config.json; marks of speech and voices have ids behind the tokenizer's, as in the published checkpoints."""
    shared = media_ids(_MARKS, ids, kind="index", positions_per_second=25)
    marks = {f"tts_text_{name}_token_id": known + number for number, name in enumerate(("pad", "start", "end"))}
    thinker = copy.deepcopy(_THINKER) | shared | {"user_token_id": ids["user"]}
    thinker["text_config"]["vocab_size"] = -(-(known + len(marks) + len(VOICES)) // 64) * 64
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "dtype": "bfloat16",
        "enable_audio_output": True,
        "enable_talker": True,
        "thinker_config": thinker,
        "talker_config": _TALKER | shared | marks,
        "token2wav_config": _TOKEN2WAV,
    }


def _write_voices(path: Path, first_mark: int, seed: int) -> None:
    try:
        import torch
    except ImportError as error:
        raise DependencyError(f"torch is needed to write {VOICES_FILE}", hint="install torch") from error
    generator = np.random.Generator(np.random.PCG64(seed))
    shapes = {"cond": (1, _TOKEN2WAV["dit_config"]["enc_emb_dim"]), "ref_mel": (1, 60, _TOKEN2WAV["dit_config"]["mel_dim"])}
    voices: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(VOICES):
        voices[name] = {"bos_token": first_mark + number}
        for part, shape in shapes.items():
            voices[name][part] = torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))
    torch.save(voices, path)
