"""The tensors of a tiny Qwen2.5-Omni checkpoint, by name: shapes from its configuration, and how to draw values that matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_core.modelkit.tiny_weights import Drawn, Tensors, under
from omni_models_qwen.talking.tiny_parts import ATTENTION_GAIN, HEAD_GAIN, reserve_end_channel

_DAMPED = 0.05
"""Factor of the head's rows for ids that must not win."""
_TEXT_END_GAIN = 65.0
"""How loud the channel is that ends a text: as loud as ends one in a few dozen tokens."""
_CODEC_END_GAIN = 2.6
"""Makes the end of speech as likely: its logits spread wider than the others', of which the best has to be beaten."""
_RESIDUAL_GAIN = 0.3
"""Keeps the signal from growing in each of the vocoder's residual units, which would make loudness a matter of luck."""
_AUDIO_GAIN = 0.18
"""Brings the audio to a root mean square of about 0.1; the decoder clips at 1."""


def thinker_tensors(config: Mapping[str, Any], end: int, known: int) -> Tensors:
    """Return the tensors `thinker.*` for a `thinker_config`.

    Args:
        config: The configuration.
        end: Text id that ends a reply.
        known: Ids from here on are not the tokenizer's.
    """
    text = config["text_config"]
    size, hidden = text["vocab_size"], text["hidden_size"]
    damped = dict.fromkeys(range(known, size), _DAMPED)
    found = {
        "model.embed_tokens.weight": Drawn.table(size, hidden, spread=0.5),
        "lm_head.weight": Drawn.product(size, hidden, gain=HEAD_GAIN),
        **_decoder({**text, "head_dim": hidden // text["num_attention_heads"]}),
    }
    reserve_end_channel(found, "lm_head.weight", end)
    head = found["lm_head.weight"]
    values = dict.fromkeys(head.values, _TEXT_END_GAIN)
    found["lm_head.weight"] = replace(head, rows={**damped, **head.rows}, values=values)
    found |= under("audio_tower", _audio_tower(config["audio_config"])) | under("visual", _visual(config["vision_config"]))
    return under("thinker", found)


def talker_tensors(config: Mapping[str, Any], codes: int) -> Tensors:
    """Return the tensors `talker.*` for a `talker_config`; ids from `codes` on have no sound."""
    size, hidden, width = config["vocab_size"], config["hidden_size"], config["embedding_size"]
    rows = dict.fromkeys(range(codes, size), _DAMPED) | {config["tts_codec_end_token_id"]: _CODEC_END_GAIN}
    found = {
        "thinker_to_talker_proj.weight": Drawn.product(hidden, width),
        "thinker_to_talker_proj.bias": Drawn.bias(hidden),
        "model.embed_tokens.weight": Drawn.table(size, width),
        "codec_head.weight": replace(Drawn.product(size, hidden, gain=HEAD_GAIN), rows=rows),
        **_decoder(config),
    }
    return under("talker", found)


def codec_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors `token2wav.*` for a `token2wav_config`."""
    found = under("code2wav_dit_model", _transformer(config["dit_config"]))
    return under("token2wav", found | under("code2wav_bigvgan_model", _vocoder(config["bigvgan_config"])))


def _decoder(config: Mapping[str, Any]) -> Tensors:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "input_layernorm.weight": Drawn.norm(hidden),
        "post_attention_layernorm.weight": Drawn.norm(hidden),
        **_linear("self_attn.q_proj", queries, hidden, gain=ATTENTION_GAIN),
        **_linear("self_attn.k_proj", keys, hidden),
        **_linear("self_attn.v_proj", keys, hidden),
        "self_attn.o_proj.weight": Drawn.product(hidden, queries, gain=ATTENTION_GAIN),
        "mlp.gate_proj.weight": Drawn.product(inner, hidden),
        "mlp.up_proj.weight": Drawn.product(inner, hidden),
        "mlp.down_proj.weight": Drawn.product(hidden, inner),
    }
    found = {"model.norm.weight": Drawn.norm(hidden)}
    for index in range(config["num_hidden_layers"]):
        found |= under(f"model.layers.{index}", layer)
    return found


def _audio_tower(config: Mapping[str, Any]) -> Tensors:
    width, inner, outputs = config["d_model"], config["encoder_ffn_dim"], config["output_dim"]
    layer = _layer_norm("self_attn_layer_norm", width) | _layer_norm("final_layer_norm", width)
    for name in ("q_proj", "v_proj", "out_proj"):
        layer |= _linear(f"self_attn.{name}", width, width)
    layer |= {"self_attn.k_proj.weight": Drawn.product(width, width)}
    layer |= _linear("fc1", inner, width) | _linear("fc2", width, inner)
    found: Tensors = {"audio_bos_eos_token.weight": Drawn.table(2, outputs)}
    found |= _conv("conv1", width, config["num_mel_bins"], 3) | _conv("conv2", width, width, 3)
    for index in range(config["encoder_layers"]):
        found |= under(f"layers.{index}", layer)
    return found | _layer_norm("ln_post", width) | _linear("proj", outputs, width)


def _visual(config: Mapping[str, Any]) -> Tensors:
    width, inner, outputs = config["hidden_size"], config["intermediate_size"], config["out_hidden_size"]
    merged = width * config["spatial_merge_size"] ** 2
    block = {"norm1.weight": Drawn.norm(width), "norm2.weight": Drawn.norm(width)}
    for name in ("q", "k", "v", "proj"):
        block |= _linear(f"attn.{name}", width, width)
    block |= _linear("mlp.gate_proj", inner, width) | _linear("mlp.up_proj", inner, width)
    block |= _linear("mlp.down_proj", width, inner)
    patch = (config["in_channels"], config["temporal_patch_size"], config["patch_size"], config["patch_size"])
    found: Tensors = {"patch_embed.proj.weight": Drawn.product(width, *patch), "merger.ln_q.weight": Drawn.norm(width)}
    for index in range(config["depth"]):
        found |= under(f"blocks.{index}", block)
    return found | _linear("merger.mlp.0", merged, merged) | _linear("merger.mlp.2", outputs, merged)


def _transformer(config: Mapping[str, Any]) -> Tensors:
    """Return the transformer that turns noise into a mel spectrogram."""
    hidden, mels = config["hidden_size"], config["mel_dim"]
    inner = hidden * config["ff_mult"]
    block = _linear("attn_norm.linear", 6 * hidden, hidden)
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        block |= _linear(f"attn.{name}", hidden, hidden)
    block |= _linear("ff.ff.0", inner, hidden) | _linear("ff.ff.3", hidden, inner)
    joined = mels + config["enc_dim"] + config["enc_emb_dim"] + config["emb_dim"]
    found = {
        "text_embed.codec_embed.weight": Drawn.table(config["num_embeds"] + 1, config["emb_dim"]),
        **_linear("input_embed.proj", hidden, joined),
        **under("input_embed.spk_encoder", _speaker_encoder(config)),
        **_linear("time_embed.time_mlp.0", hidden, 256),
        **_linear("time_embed.time_mlp.2", hidden, hidden),
        **_linear("norm_out.linear", 2 * hidden, hidden),
        **_linear("proj_out", mels, hidden),
    }
    for index in range(config["num_hidden_layers"]):
        found |= under(f"transformer_blocks.{index}", block)
    return found


def _speaker_encoder(config: Mapping[str, Any]) -> Tensors:
    channels, kernels = config["enc_channels"], config["enc_kernel_sizes"]
    attention, squeezed, scale = config["enc_attention_channels"], config["enc_se_channels"], config["enc_res2net_scale"]
    found = _conv("blocks.0.conv", channels[0], config["mel_dim"], kernels[0])
    for index in range(1, len(channels) - 1):
        width, part = channels[index], channels[index] // scale
        block = _conv("tdnn1.conv", width, channels[index - 1], 1) | _conv("tdnn2.conv", width, width, 1)
        for number in range(scale - 1):
            block |= _conv(f"res2net_block.blocks.{number}.conv", part, part, kernels[index])
        block |= _conv("se_block.conv1", squeezed, width, 1) | _conv("se_block.conv2", width, squeezed, 1)
        found |= under(f"blocks.{index}", block)
    last = channels[-1]
    found |= _conv("mfa.conv", last, sum(channels[1:-1]), 1) | _conv("asp.tdnn.conv", attention, 3 * last, 1)
    return found | _conv("asp.conv", last, attention, 1) | _conv("fc", config["enc_dim"], 2 * last, 1)


def _vocoder(config: Mapping[str, Any]) -> Tensors:
    """Return BigVGAN."""
    channels, sizes = config["upsample_initial_channel"], config["resblock_kernel_sizes"]
    found = _conv("conv_pre", channels, config["mel_dim"], 7)
    steps = zip(config["upsample_rates"], config["upsample_kernel_sizes"], strict=True)
    for index, (rate, kernel) in enumerate(steps):
        spread = (channels * kernel / rate) ** -0.5
        found[f"ups.{index}.0.weight"] = Drawn((channels, channels // 2, kernel), spread=spread)
        channels //= 2
        found[f"ups.{index}.0.bias"] = Drawn.bias(channels)
        for number, (size, dilations) in enumerate(zip(sizes, config["resblock_dilation_sizes"], strict=True)):
            block: Tensors = {}
            for place in range(len(dilations)):
                block |= _conv(f"convs1.{place}", channels, channels, size)
                block |= _conv(f"convs2.{place}", channels, channels, size, gain=_RESIDUAL_GAIN)
            for place in range(2 * len(dilations)):
                block |= _snake(f"activations.{place}.act", channels)
            found |= under(f"resblocks.{index * len(sizes) + number}", block)
    found |= _snake("activation_post.act", channels)
    return found | {"conv_post.weight": Drawn.product(1, channels, 7, gain=_AUDIO_GAIN)}


def _linear(name: str, outputs: int, inputs: int, *, gain: float = 1.0) -> Tensors:
    return {f"{name}.weight": Drawn.product(outputs, inputs, gain=gain), f"{name}.bias": Drawn.bias(outputs)}


def _conv(name: str, outputs: int, inputs: int, kernel: int, *, gain: float = 1.0) -> Tensors:
    return {f"{name}.weight": Drawn.product(outputs, inputs, kernel, gain=gain), f"{name}.bias": Drawn.bias(outputs)}


def _layer_norm(name: str, width: int) -> Tensors:
    return {f"{name}.weight": Drawn.norm(width), f"{name}.bias": Drawn.bias(width)}


def _snake(name: str, channels: int) -> Tensors:
    return {f"{name}.{part}": Drawn((channels,), spread=0.1) for part in ("alpha", "beta")}
