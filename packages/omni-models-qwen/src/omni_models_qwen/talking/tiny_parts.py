"""Tensors that the tiny checkpoints of several models have, and how to draw values that matter.

With the usual initial values (all norms 1, layer scales 0.01, flat heads) a vocoder is silent and every choice of a token is
as good as another, so that a model works whatever it has loaded. Here every tensor has an effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors, under

CODEC: Mapping[str, Any] = {
    "codebook_size": 2048,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_quantizers": 16,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "decoder_dim": 64,
    "max_position_embeddings": 8000,
    "rope_theta": 10000,
}
"""Sizes of the 12 Hz codecs' decoders."""
HEAD_GAIN = 10.0
"""Spread of logits: wide enough that rounding seldom changes the best, narrow enough that sampling varies."""
_END_CHANNEL = 0
_END_GAIN = 17.5
"""End-of-speech listens to one channel of the talker alone, into which only the codes' own vectors write. So its logit is as
random as the last frame, whatever the seed and the text, and wins about once in a few dozen frames. With a random row of the
head, one seed in four never stops and one in four stops at once."""
ATTENTION_GAIN = 2.0
"""Sharpens attention: with plain random weights it averages over the prompt, and all texts give nearly the same reply."""
EMBEDDING_SPREAD = 1.0
"""Of the codes' vectors; 16 of them are summed, so a frame outweighs the text that is added to it."""
_RESIDUAL_GAIN = 0.3
"""Keeps the signal from doubling in each of the codec's twelve residual units, which would make loudness a matter of luck."""
_AUDIO_GAIN = 0.05
"""Brings the audio to a root mean square of 0.07 to 0.2, depending on the seed; the decoder clips at 1."""


def predictor_tensors(config: Mapping[str, Any], groups: int, talker_hidden: int) -> Tensors:
    """Return the tensors of a code predictor.

    Args:
        config: Its sizes.
        groups: Codes of a frame.
        talker_hidden: Width of the talker's rows.
    """
    inner, codes = config["hidden_size"], config["vocab_size"]
    found = decoder_tensors("model", config, attention_gain=ATTENTION_GAIN)
    for level in range(groups - 1):
        found[f"model.codec_embedding.{level}.weight"] = Drawn.table(codes, talker_hidden, spread=EMBEDDING_SPREAD)
        found[f"lm_head.{level}.weight"] = Drawn.product(codes, inner, gain=HEAD_GAIN)
    if inner != talker_hidden:
        found["small_to_mtp_projection.weight"] = Drawn.product(inner, talker_hidden)
        found["small_to_mtp_projection.bias"] = Drawn.bias(inner)
    return found


def resize_mlp(inputs: int, inner: int, outputs: int) -> Tensors:
    """Return the tensors of a `ResizeMlp`."""
    return {
        "linear_fc1.weight": Drawn.product(inner, inputs),
        "linear_fc1.bias": Drawn.bias(inner),
        "linear_fc2.weight": Drawn.product(outputs, inner),
        "linear_fc2.bias": Drawn.bias(outputs),
    }


def reserve_end_channel(found: Tensors, head: str, end: int) -> None:
    """Keep all but embeddings out of the channel that ends a reply, and let nothing else end it.

    Args:
        found: Tensors of the model, changed here.
        head: Name of its head.
        end: Id that ends a reply.
    """
    for name, spec in found.items():
        if "projection.linear_fc2." in name or (
            name.startswith("model.layers.") and name.endswith(("o_proj.weight", "down_proj.weight"))
        ):
            found[name] = replace(spec, rows={_END_CHANNEL: 0.0})
    found["model.norm.weight"] = replace(found["model.norm.weight"], values={(_END_CHANNEL,): 1.0})
    found[head] = replace(found[head], rows={end: 0.0}, values={(end, _END_CHANNEL): _END_GAIN})


def pre_transformer(config: Mapping[str, Any]) -> Tensors:
    """Return the transformer in front of a codec's convolutions."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    layer = {
        **codec_attention(hidden, config["num_attention_heads"] * head, config["num_key_value_heads"] * head),
        "mlp.gate_proj.weight": Drawn.product(inner, hidden),
        "mlp.up_proj.weight": Drawn.product(inner, hidden),
        "mlp.down_proj.weight": Drawn.product(hidden, inner),
    }
    found: Tensors = {"pre_transformer.norm.weight": Drawn.norm(hidden)}
    for index in range(config["num_hidden_layers"]):
        found |= under(f"pre_transformer.layers.{index}", layer)
    return found


def upsampling(ratios: Sequence[int], width: int) -> Tensors:
    """Return the steps up to the rate at which audio begins."""
    found: Tensors = {}
    for index, ratio in enumerate(ratios):
        found |= _upsample(f"upsample.{index}.0.conv", width, width, ratio, ratio)
        found |= under(f"upsample.{index}.1", _convnext(width))
    return found


def audio_blocks(config: Mapping[str, Any], inputs: int) -> Tensors:
    """Return a codec's blocks of convolutions, which read `inputs` channels."""
    channels, end = config["decoder_dim"], len(config["upsample_rates"]) + 1
    found = conv("decoder.0.conv", channels, inputs, 7)
    for index, rate in enumerate(config["upsample_rates"], 1):
        block = under("0", _snake(channels)) | _upsample("1.conv", channels, channels // 2, 2 * rate, rate)
        channels //= 2
        for unit in (2, 3, 4):
            block |= under(f"{unit}.act1", _snake(channels)) | under(f"{unit}.act2", _snake(channels))
            block |= conv(f"{unit}.conv1.conv", channels, channels, 7)
            block |= conv(f"{unit}.conv2.conv", channels, channels, 1, gain=_RESIDUAL_GAIN)
        found |= under(f"decoder.{index}.block", block)
    found |= under(f"decoder.{end}", _snake(channels))
    return found | conv(f"decoder.{end + 1}.conv", 1, channels, 7, gain=_AUDIO_GAIN)


def codec_attention(hidden: int, queries: int, keys: int) -> Tensors:
    """Return the attention, norms and scales of a layer of a codec's transformers."""
    scale = Drawn((hidden,), center=0.3, spread=0.05)
    return {
        "input_layernorm.weight": Drawn.norm(hidden),
        "post_attention_layernorm.weight": Drawn.norm(hidden),
        "self_attn.q_proj.weight": Drawn.product(queries, hidden),
        "self_attn.k_proj.weight": Drawn.product(keys, hidden),
        "self_attn.v_proj.weight": Drawn.product(keys, hidden),
        "self_attn.o_proj.weight": Drawn.product(hidden, queries),
        "self_attn_layer_scale.scale": scale,
        "mlp_layer_scale.scale": scale,
    }


def _convnext(width: int) -> Tensors:
    return {
        **conv("dwconv.conv", width, 1, 7),
        "gamma": Drawn((width,), center=0.3, spread=0.05),
        "norm.weight": Drawn.norm(width),
        "norm.bias": Drawn.bias(width),
        "pwconv1.weight": Drawn.product(4 * width, width),
        "pwconv1.bias": Drawn.bias(4 * width),
        "pwconv2.weight": Drawn.product(width, 4 * width),
        "pwconv2.bias": Drawn.bias(width),
    }


def conv(name: str, outputs: int, inputs: int, kernel: int, *, gain: float = 1.0) -> Tensors:
    """Return a convolution."""
    return {
        f"{name}.weight": Drawn.product(outputs, inputs, kernel, gain=gain),
        f"{name}.bias": Drawn.bias(outputs, gain=gain),
    }


def _upsample(name: str, inputs: int, outputs: int, kernel: int, stride: int) -> Tensors:
    """Return a transposed convolution; `kernel / stride` columns of its input meet in each column of its output."""
    spread = (inputs * kernel / stride) ** -0.5
    return {f"{name}.weight": Drawn((inputs, outputs, kernel), spread=spread), f"{name}.bias": Drawn.bias(outputs)}


def _snake(channels: int) -> Tensors:
    return {name: Drawn((channels,), spread=0.1) for name in ("alpha", "beta")}
