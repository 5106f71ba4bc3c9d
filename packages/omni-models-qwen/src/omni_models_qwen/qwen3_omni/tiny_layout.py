"""The tensors of a tiny Qwen3-Omni checkpoint, by name: shapes from its configuration, and how to draw values that matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors, under
from omni_models_qwen.talking.tiny_parts import (
    ATTENTION_GAIN,
    EMBEDDING_SPREAD,
    HEAD_GAIN,
    audio_blocks,
    pre_transformer,
    predictor_tensors,
    reserve_end_channel,
    resize_mlp,
    upsampling,
)

_MEL_STEPS = 8
"""Bins of a spectrum that three convolutions with a stride of 2 leave as one."""
_AUDIO_GAIN = 0.6
"""Further factor of the loudness: without codebooks in front, the decoder's input is a mean of 16 vectors."""


def thinker_tensors(config: Mapping[str, Any], end: int) -> Tensors:
    """Return the tensors `thinker.*` for a `thinker_config`; `end` is the text id that ends a reply."""
    text = config["text_config"]
    found = {
        "model.embed_tokens.weight": Drawn.table(text["vocab_size"], text["hidden_size"]),
        "lm_head.weight": Drawn.product(text["vocab_size"], text["hidden_size"], gain=HEAD_GAIN),
        **_sparse_decoder(text),
    }
    reserve_end_channel(found, "lm_head.weight", end)
    found |= under("audio_tower", _audio_tower(config["audio_config"]))
    return under("thinker", found | under("visual", _visual(config["vision_config"])))


def talker_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors `talker.*` for a `talker_config`."""
    text, thinker = config["text_config"], config["thinker_hidden_size"]
    hidden, inner = text["hidden_size"], text["intermediate_size"]
    found = {
        "model.codec_embedding.weight": Drawn.table(text["vocab_size"], hidden, spread=EMBEDDING_SPREAD),
        "codec_head.weight": Drawn.product(text["vocab_size"], hidden, gain=HEAD_GAIN),
        **under("text_projection", resize_mlp(thinker, inner, hidden)),
        **under("hidden_projection", resize_mlp(thinker, inner, hidden)),
        **_sparse_decoder(text),
        **under("code_predictor", predictor_tensors(config["code_predictor_config"], config["num_code_groups"], hidden)),
    }
    reserve_end_channel(found, "codec_head.weight", config["codec_eos_token_id"])
    return under("talker", found)


def codec_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors `code2wav.*` for a `code2wav_config`."""
    hidden = config["hidden_size"]
    found = {
        "code_embedding.weight": Drawn.table(config["codebook_size"] * config["num_quantizers"], hidden, spread=4.0),
        **pre_transformer(config),
        **upsampling(config["upsampling_ratios"], hidden),
        **audio_blocks(config, hidden),
    }
    last = f"decoder.{len(config['upsample_rates']) + 2}.conv.weight"
    found[last] = replace(found[last], spread=found[last].spread * _AUDIO_GAIN)
    return under("code2wav", found)


def _sparse_decoder(config: Mapping[str, Any]) -> Tensors:
    """Return `model.layers` and `model.norm` of a decoder with experts, one of them shared where it has a width."""
    hidden, inner, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    shared = config.get("shared_expert_intermediate_size") or 0
    sparse = {"mlp.gate.weight": Drawn.product(experts, hidden)}
    for number in range(experts):
        sparse |= under(f"mlp.experts.{number}", _gated_mlp(hidden, inner))
    if shared:
        sparse["mlp.shared_expert_gate.weight"] = Drawn.product(1, hidden)
        sparse |= under("mlp.shared_expert", _gated_mlp(hidden, shared))
    dense = decoder_tensors("model", config, attention_gain=ATTENTION_GAIN)
    found = {name: spec for name, spec in dense.items() if ".mlp." not in name}
    for index in range(config["num_hidden_layers"]):
        found |= under(f"model.layers.{index}", sparse)
    return found


def _gated_mlp(hidden: int, inner: int) -> Tensors:
    return {
        "gate_proj.weight": Drawn.product(inner, hidden),
        "up_proj.weight": Drawn.product(inner, hidden),
        "down_proj.weight": Drawn.product(hidden, inner),
    }


def _audio_tower(config: Mapping[str, Any]) -> Tensors:
    width, inner, channels = config["d_model"], config["encoder_ffn_dim"], config["downsample_hidden_size"]
    found: Tensors = {}
    for number, inputs in enumerate((1, channels, channels), 1):
        found[f"conv2d{number}.weight"] = Drawn.product(channels, inputs, 3, 3)
        found[f"conv2d{number}.bias"] = Drawn.bias(channels)
    found["conv_out.weight"] = Drawn.product(width, channels * config["num_mel_bins"] // _MEL_STEPS)
    layer = _norm("self_attn_layer_norm", width) | _norm("final_layer_norm", width)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        layer |= _linear(f"self_attn.{name}", width, width)
    layer |= _linear("fc1", inner, width) | _linear("fc2", width, inner)
    for index in range(config["encoder_layers"]):
        found |= under(f"layers.{index}", layer)
    found |= _norm("ln_post", width) | _linear("proj1", width, width)
    return found | _linear("proj2", config["output_dim"], width)


def _visual(config: Mapping[str, Any]) -> Tensors:
    width, inner, outputs = config["hidden_size"], config["intermediate_size"], config["out_hidden_size"]
    merged = width * config["spatial_merge_size"] ** 2
    patch = (config["temporal_patch_size"], config["patch_size"], config["patch_size"])
    found: Tensors = {
        "patch_embed.proj.weight": Drawn.product(width, config.get("in_channels", 3), *patch),
        "patch_embed.proj.bias": Drawn.bias(width),
        "pos_embed.weight": Drawn.table(config["num_position_embeddings"], width),
    }
    block = _norm("norm1", width) | _norm("norm2", width)
    block |= _linear("attn.qkv", 3 * width, width) | _linear("attn.proj", width, width)
    block |= _linear("mlp.linear_fc1", inner, width) | _linear("mlp.linear_fc2", width, inner)
    for index in range(config["depth"]):
        found |= under(f"blocks.{index}", block)
    merger = _linear("mlp.0", merged, merged) | _linear("mlp.2", outputs, merged)
    found |= under("merger", merger | _norm("ln_q", width))
    for index in range(len(config["deepstack_visual_indexes"])):
        found |= under(f"merger_list.{index}", merger | _norm("ln_q", merged))
    return found


def _linear(name: str, outputs: int, inputs: int) -> Tensors:
    return {f"{name}.weight": Drawn.product(outputs, inputs), f"{name}.bias": Drawn.bias(outputs)}


def _norm(name: str, width: int) -> Tensors:
    return {f"{name}.weight": Drawn.norm(width), f"{name}.bias": Drawn.bias(width)}
