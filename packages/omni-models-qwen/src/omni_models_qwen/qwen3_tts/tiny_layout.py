"""The tensors of a tiny Qwen3-TTS checkpoint, by name: shapes from its configuration, and how to draw values that matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.modelkit.tiny_weights import Drawn, Tensors, decoder_tensors, under
from omni_models_qwen.talking.tiny_parts import (
    ATTENTION_GAIN,
    EMBEDDING_SPREAD,
    HEAD_GAIN,
    audio_blocks,
    codec_attention,
    conv,
    pre_transformer,
    predictor_tensors,
    reserve_end_channel,
    resize_mlp,
    upsampling,
)


def talker_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors `talker.*` for a `talker_config`."""
    hidden, text = config["hidden_size"], config["text_hidden_size"]
    found = {
        "model.text_embedding.weight": Drawn.table(config["text_vocab_size"], text),
        "model.codec_embedding.weight": Drawn.table(config["vocab_size"], hidden, spread=EMBEDDING_SPREAD),
        **under("text_projection", resize_mlp(text, text, hidden)),
        "codec_head.weight": Drawn.product(config["vocab_size"], hidden, gain=HEAD_GAIN),
        **decoder_tensors("model", config, attention_gain=ATTENTION_GAIN),
        **under("code_predictor", predictor_tensors(config["code_predictor_config"], config["num_code_groups"], hidden)),
    }
    reserve_end_channel(found, "codec_head.weight", config["codec_eos_token_id"])
    return under("talker", found)


def speaker_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors `speaker_encoder.*` for a `speaker_encoder_config`."""
    channels, squeeze, attention = config["enc_channels"], config["enc_se_channels"], config["enc_attention_channels"]
    scale, width = config["enc_res2net_scale"], channels[-1]
    found = conv("blocks.0.conv", channels[0], config["mel_dim"], 5)
    for index in range(1, len(channels) - 1):
        outputs = channels[index]
        part = outputs // scale
        block = conv("tdnn1.conv", outputs, channels[index - 1], 1) | conv("tdnn2.conv", outputs, outputs, 1)
        for step in range(scale - 1):
            block |= conv(f"res2net_block.blocks.{step}.conv", part, part, 3)
        block |= conv("se_block.conv1", squeeze, outputs, 1) | conv("se_block.conv2", outputs, squeeze, 1)
        found |= under(f"blocks.{index}", block)
    found |= conv("mfa.conv", width, sum(channels[1:-1]), 1)
    found |= conv("asp.tdnn.conv", attention, 3 * width, 1) | conv("asp.conv", width, attention, 1)
    found |= conv("fc", config["enc_dim"], 2 * width, 1)
    return under("speaker_encoder", found)


def codec_tensors(config: Mapping[str, Any]) -> Tensors:
    """Return the tensors of the codec, `encoder.*` and `decoder.*`, for its config.json."""
    encoder = _encoder_convs(config["encoder_config"]) | _encoder_layers(config["encoder_config"])
    decoder = _latent_tensors(config["decoder_config"]) | audio_blocks(
        config["decoder_config"], config["decoder_config"]["latent_dim"]
    )
    return under("encoder", encoder) | under("decoder", decoder)


def _encoder_convs(config: Mapping[str, Any]) -> Tensors:
    """Return the encoder's convolutions; activations take numbers in the list of layers, hence the steps of three."""
    channels, hidden = config["num_filters"], config["hidden_size"]
    found = conv("encoder.layers.0.conv", channels, config["audio_channels"], 7)
    index = 1
    for ratio in reversed(config["upsampling_ratios"]):
        found |= conv(f"encoder.layers.{index}.block.1.conv", channels // 2, channels, 3)
        found |= conv(f"encoder.layers.{index}.block.3.conv", channels, channels // 2, 1)
        found |= conv(f"encoder.layers.{index + 2}.conv", 2 * channels, channels, 2 * ratio)
        channels, index = 2 * channels, index + 3
    found |= conv(f"encoder.layers.{index + 1}.conv", hidden, channels, 3)
    found["downsample.conv.weight"] = Drawn.product(hidden, hidden, 4)
    return found


def _encoder_layers(config: Mapping[str, Any]) -> Tensors:
    """Return the encoder's transformer and codebooks."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    layer = {
        **codec_attention(hidden, queries, keys),
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
    hidden, latent, vector = config["hidden_size"], config["latent_dim"], config["codebook_dim"]
    semantic, width = config["num_semantic_quantizers"], vector // 2
    found: Tensors = {}
    for name, levels in (("rvq_first", semantic), ("rvq_rest", config["num_quantizers"] - semantic)):
        books = _projections(vector, width)
        for level in range(levels):
            books |= under(f"vq.layers.{level}._codebook", _codebook(config["codebook_size"], width, "embedding_sum"))
        found |= under(f"quantizer.{name}", books)
    found |= conv("pre_conv.conv", latent, vector, 3)
    found |= pre_transformer(config)
    found |= {
        "pre_transformer.input_proj.weight": Drawn.product(hidden, latent),
        "pre_transformer.input_proj.bias": Drawn.bias(hidden),
        "pre_transformer.output_proj.weight": Drawn.product(latent, hidden),
        "pre_transformer.output_proj.bias": Drawn.bias(latent),
    }
    return found | upsampling(config["upsampling_ratios"], latent)


def _projections(outer: int, inner: int) -> Tensors:
    return {"input_proj.weight": Drawn.product(inner, outer, 1), "output_proj.weight": Drawn.product(outer, inner, 1)}


def _codebook(rows: int, width: int, sums: str) -> Tensors:
    """Return a codebook as it is stored: sums of vectors, and how many each is the sum of."""
    return {sums: Drawn.table(rows, width), "cluster_usage": Drawn((rows,), center=1.5, spread=0.3, least=0.5)}
