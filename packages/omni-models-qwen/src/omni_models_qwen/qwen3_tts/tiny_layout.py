"""The tensors of a Qwen3-TTS checkpoint, by name: shapes from its configuration, and how to draw values that matter.

With the usual initial values (all norms 1, layer scales 0.01, flat heads) a vocoder is silent and every choice of a token is
as good as another, so that a model works whatever it has loaded. Here every tensor has an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors, under

_HEAD_GAIN = 10.0
"""Spread of logits: wide enough that rounding seldom changes the best, narrow enough that sampling varies."""
_END_CHANNEL = 0
_END_GAIN = 17.5
"""End-of-speech listens to one channel of the talker alone, into which only the codes' own vectors write. So its logit is as
random as the last frame, whatever the seed and the text, and wins about once in a few dozen frames. With a random row of the
head, one seed in four never stops and one in four stops at once."""
_ATTENTION_GAIN = 2.0
"""Sharpens attention: with plain random weights it averages over the prompt, and all texts give nearly the same reply."""
_EMBEDDING_SPREAD = 1.0
"""Of the codes' vectors; 16 of them are summed, so a frame outweighs the text that is added to it."""
_RESIDUAL_GAIN = 0.3
"""Keeps the signal from doubling in each of the codec's twelve residual units, which would make loudness a matter of luck."""
_AUDIO_GAIN = 0.05
"""Brings the audio to a root mean square of 0.07 to 0.2, depending on the seed; the decoder clips at 1."""


def talker_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors `talker.*` for a `talker_config`."""
    predictor = config["code_predictor_config"]
    hidden, text, levels = config["hidden_size"], config["text_hidden_size"], config["num_code_groups"] - 1
    inner, codes = predictor["hidden_size"], predictor["vocab_size"]
    found = {
        "model.text_embedding.weight": Drawn.table(config["text_vocab_size"], text),
        "model.codec_embedding.weight": Drawn.table(config["vocab_size"], hidden, spread=_EMBEDDING_SPREAD),
        "text_projection.linear_fc1.weight": Drawn.product(text, text),
        "text_projection.linear_fc1.bias": Drawn.bias(text),
        "text_projection.linear_fc2.weight": Drawn.product(hidden, text),
        "text_projection.linear_fc2.bias": Drawn.bias(hidden),
        "codec_head.weight": Drawn.product(config["vocab_size"], hidden, gain=_HEAD_GAIN),
        **decoder_tensors("model", config, attention_gain=_ATTENTION_GAIN),
        **decoder_tensors("code_predictor.model", predictor, attention_gain=_ATTENTION_GAIN),
    }
    _reserve_end_channel(found, config["codec_eos_token_id"])
    for level in range(levels):
        table = Drawn.table(codes, hidden, spread=_EMBEDDING_SPREAD)
        found[f"code_predictor.model.codec_embedding.{level}.weight"] = table
        found[f"code_predictor.lm_head.{level}.weight"] = Drawn.product(codes, inner, gain=_HEAD_GAIN)
    if inner != hidden:
        found["code_predictor.small_to_mtp_projection.weight"] = Drawn.product(inner, hidden)
        found["code_predictor.small_to_mtp_projection.bias"] = Drawn.bias(inner)
    return under("talker", found)


def _reserve_end_channel(found: Tensors, end: int) -> None:
    """Keep all but codes out of the channel that ends the speech, and let nothing else end it."""
    for name, spec in found.items():
        if name.startswith("text_projection.linear_fc2.") or (
            name.startswith("model.layers.") and name.endswith(("o_proj.weight", "down_proj.weight"))
        ):
            found[name] = replace(spec, rows={_END_CHANNEL: 0.0})
    found["model.norm.weight"] = replace(found["model.norm.weight"], values={(_END_CHANNEL,): 1.0})
    found["codec_head.weight"] = replace(found["codec_head.weight"], rows={end: 0.0}, values={(end, _END_CHANNEL): _END_GAIN})


def speaker_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors `speaker_encoder.*` for a `speaker_encoder_config`."""
    channels, squeeze, attention = config["enc_channels"], config["enc_se_channels"], config["enc_attention_channels"]
    scale, width = config["enc_res2net_scale"], channels[-1]
    found = _conv("blocks.0.conv", channels[0], config["mel_dim"], 5)
    for index in range(1, len(channels) - 1):
        outputs = channels[index]
        part = outputs // scale
        block = _conv("tdnn1.conv", outputs, channels[index - 1], 1) | _conv("tdnn2.conv", outputs, outputs, 1)
        for step in range(scale - 1):
            block |= _conv(f"res2net_block.blocks.{step}.conv", part, part, 3)
        block |= _conv("se_block.conv1", squeeze, outputs, 1) | _conv("se_block.conv2", outputs, squeeze, 1)
        found |= under(f"blocks.{index}", block)
    found |= _conv("mfa.conv", width, sum(channels[1:-1]), 1)
    found |= _conv("asp.tdnn.conv", attention, 3 * width, 1) | _conv("asp.conv", width, attention, 1)
    found |= _conv("fc", config["enc_dim"], 2 * width, 1)
    return under("speaker_encoder", found)


def codec_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors of the codec, `encoder.*` and `decoder.*`, for its config.json."""
    encoder = _encoder_convs(config["encoder_config"]) | _encoder_layers(config["encoder_config"])
    decoder = _latent_tensors(config["decoder_config"]) | _audio_tensors(config["decoder_config"])
    return under("encoder", encoder) | under("decoder", decoder)


def _encoder_convs(config: Mapping[str, Any]) -> Tensors:
    """Return the encoder's convolutions; activations take numbers in the list of layers, hence the steps of three."""
    channels, hidden = config["num_filters"], config["hidden_size"]
    found = _conv("encoder.layers.0.conv", channels, config["audio_channels"], 7)
    index = 1
    for ratio in reversed(config["upsampling_ratios"]):
        found |= _conv(f"encoder.layers.{index}.block.1.conv", channels // 2, channels, 3)
        found |= _conv(f"encoder.layers.{index}.block.3.conv", channels, channels // 2, 1)
        found |= _conv(f"encoder.layers.{index + 2}.conv", 2 * channels, channels, 2 * ratio)
        channels, index = 2 * channels, index + 3
    found |= _conv(f"encoder.layers.{index + 1}.conv", hidden, channels, 3)
    found["downsample.conv.weight"] = Drawn.product(hidden, hidden, 4)
    return found


def _encoder_layers(config: Mapping[str, Any]) -> Tensors:
    """Return the encoder's transformer and codebooks."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    layer = {
        **_attention(hidden, queries, keys),
        "input_layernorm.bias": Drawn.bias(hidden),
        "post_attention_layernorm.bias": Drawn.bias(hidden),
        "mlp.fc1.weight": Drawn.product(inner, hidden),
        "mlp.fc2.weight": Drawn.product(hidden, inner),
    }
    found: Tensors = {}
    for index in range(config["num_hidden_layers"]):
        found |= under(f"encoder_transformer.layers.{index}", layer)
    semantic = config["num_semantic_quantizers"]
    width, rows = config["codebook_dim"], config["codebook_size"]
    for kind, levels in (("semantic", semantic), ("acoustic", config["num_quantizers"] - semantic)):
        books = _projections(hidden, width)
        for level in range(levels):
            books |= under(f"layers.{level}.codebook", _codebook(rows, width, "embed_sum"))
            books[f"layers.{level}.codebook.initialized"] = Drawn((1,), center=1.0, spread=0.0)
        found |= under(f"quantizer.{kind}_residual_vector_quantizer", books)
    return found


def _latent_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the decoder's codebooks, its transformer and the steps up to the rate at which audio begins."""
    hidden, inner, latent, vector = (
        config[name] for name in ("hidden_size", "intermediate_size", "latent_dim", "codebook_dim")
    )
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    semantic, width = config["num_semantic_quantizers"], vector // 2
    found: Tensors = {}
    for name, levels in (("rvq_first", semantic), ("rvq_rest", config["num_quantizers"] - semantic)):
        books = _projections(vector, width)
        for level in range(levels):
            books |= under(f"vq.layers.{level}._codebook", _codebook(config["codebook_size"], width, "embedding_sum"))
        found |= under(f"quantizer.{name}", books)
    found |= _conv("pre_conv.conv", latent, vector, 3)
    layer = {
        **_attention(hidden, queries, keys),
        "mlp.gate_proj.weight": Drawn.product(inner, hidden),
        "mlp.up_proj.weight": Drawn.product(inner, hidden),
        "mlp.down_proj.weight": Drawn.product(hidden, inner),
    }
    for index in range(config["num_hidden_layers"]):
        found |= under(f"pre_transformer.layers.{index}", layer)
    found |= {
        "pre_transformer.norm.weight": Drawn.norm(hidden),
        "pre_transformer.input_proj.weight": Drawn.product(hidden, latent),
        "pre_transformer.input_proj.bias": Drawn.bias(hidden),
        "pre_transformer.output_proj.weight": Drawn.product(latent, hidden),
        "pre_transformer.output_proj.bias": Drawn.bias(latent),
    }
    for index, ratio in enumerate(config["upsampling_ratios"]):
        found |= _upsample(f"upsample.{index}.0.conv", latent, latent, ratio, ratio)
        found |= under(f"upsample.{index}.1", _convnext(latent))
    return found


def _audio_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the decoder's blocks of convolutions."""
    channels, end = config["decoder_dim"], len(config["upsample_rates"]) + 1
    found = _conv("decoder.0.conv", channels, config["latent_dim"], 7)
    for index, rate in enumerate(config["upsample_rates"], 1):
        block = under("0", _snake(channels)) | _upsample("1.conv", channels, channels // 2, 2 * rate, rate)
        channels //= 2
        for unit in (2, 3, 4):
            block |= under(f"{unit}.act1", _snake(channels)) | under(f"{unit}.act2", _snake(channels))
            block |= _conv(f"{unit}.conv1.conv", channels, channels, 7)
            block |= _conv(f"{unit}.conv2.conv", channels, channels, 1, gain=_RESIDUAL_GAIN)
        found |= under(f"decoder.{index}.block", block)
    found |= under(f"decoder.{end}", _snake(channels))
    return found | _conv(f"decoder.{end + 1}.conv", 1, channels, 7, gain=_AUDIO_GAIN)


def _attention(hidden: int, queries: int, keys: int) -> Tensors:
    """Return what the transformers of encoder and decoder have in common."""
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
        **_conv("dwconv.conv", width, 1, 7),
        "gamma": Drawn((width,), center=0.3, spread=0.05),
        "norm.weight": Drawn.norm(width),
        "norm.bias": Drawn.bias(width),
        "pwconv1.weight": Drawn.product(4 * width, width),
        "pwconv1.bias": Drawn.bias(4 * width),
        "pwconv2.weight": Drawn.product(width, 4 * width),
        "pwconv2.bias": Drawn.bias(width),
    }


def _conv(name: str, outputs: int, inputs: int, kernel: int, *, gain: float = 1.0) -> Tensors:
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


def _projections(outer: int, inner: int) -> Tensors:
    return {"input_proj.weight": Drawn.product(inner, outer, 1), "output_proj.weight": Drawn.product(outer, inner, 1)}


def _codebook(rows: int, width: int, sums: str) -> Tensors:
    """Return a codebook as it is stored: sums of vectors, and how many each is the sum of."""
    return {sums: Drawn.table(rows, width), "cluster_usage": Drawn((rows,), center=1.5, spread=0.3, least=0.5)}
