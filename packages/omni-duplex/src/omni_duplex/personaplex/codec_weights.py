"""Reading the codec's published file into transformers' module, name by name."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor
from transformers import MimiModel
from transformers.models.mimi.modeling_mimi import MimiConvTranspose1d

from omni_core.modelkit.weights import TensorReader

_NAMES = (
    (r"^(encoder|decoder)_transformer\.layers", r"\1_transformer.transformer.layers"),
    (r"^(encoder|decoder)\.layers", r"\1.model"),
    (r"^quantizer\.semantic_residual_vector_quantizer\.layers", "quantizer.rvq_first.vq.layers"),
    (r"^quantizer\.acoustic_residual_vector_quantizer\.layers", "quantizer.rvq_rest.vq.layers"),
    (r"^quantizer\.semantic_residual_vector_quantizer", "quantizer.rvq_first"),
    (r"^quantizer\.acoustic_residual_vector_quantizer", "quantizer.rvq_rest"),
    (r"\.codebook\.embed_sum$", "._codebook.embedding_sum"),
    (r"\.codebook\.initialized$", "._codebook._initialized"),
    (r"\.codebook\.", "._codebook."),
    (r"\.mlp\.fc(\d)\.", r".linear\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.out_proj."),
    (r"\.input_layernorm\.", ".norm1."),
    (r"\.post_attention_layernorm\.", ".norm2."),
    (r"\.self_attn_layer_scale\.", ".layer_scale_1."),
    (r"\.mlp_layer_scale\.", ".layer_scale_2."),
)
"""transformers' names and the published ones."""


def rotated(weight: Tensor, heads: int) -> Tensor:
    """Return a projection of queries or keys with its rows in transformers' order.

    The published network turns neighbouring pairs of a head by one angle, transformers the first with the second half.
    """
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


@torch.no_grad()
def load_codec(model: MimiModel, path: Path) -> None:
    """Fill the codec from its published file.

    Raises:
        ConfigError: The file is missing or damaged, or lacks a tensor.
    """
    reader = TensorReader((path,), "")
    config = model.config
    state = model.state_dict()
    transposed = {name for name, layer in model.named_modules() if isinstance(layer, MimiConvTranspose1d)}
    for name, held in state.items():
        if match := re.fullmatch(r"(.*\.self_attn)\.([qkv])_proj\.weight", name):
            if match[2] == "q":
                _load_attention(state, match[1], reader, config.num_attention_heads)
            continue
        held.copy_(reader.take(published_name(name, transposed), *held.shape))


def published_name(name: str, transposed: set[str]) -> str:
    """Return the name in the published file of one of transformers' tensors, projections of queries to values apart."""
    layer, _, rest = name.rpartition(".conv.")
    if layer:
        inner = "convtr.convtr" if layer in transposed else "conv.conv"
        if layer in ("upsample", "downsample"):
            inner = f"{inner.split('.')[0]}.{inner}"
        name = f"{layer}.{inner}.{rest}"
    for pattern, published in _NAMES:
        name = re.sub(pattern, published, name)
    return name


def _load_attention(state: dict[str, Tensor], layer: str, reader: TensorReader, heads: int) -> None:
    queries, keys, values = (state[f"{layer}.{kind}_proj.weight"] for kind in "qkv")
    size = queries.shape[0]
    name = re.sub(r"_transformer\.", "_transformer.transformer.", layer)
    joined = reader.take(f"{name}.in_proj_weight", 3 * size, queries.shape[1])
    queries.copy_(rotated(joined[:size], heads))
    keys.copy_(rotated(joined[size : 2 * size], heads))
    values.copy_(joined[2 * size :])
