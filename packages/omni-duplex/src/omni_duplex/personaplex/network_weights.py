"""Reading the network's published file into transformers' modules, name by name; files for 8 and for 16 codes are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from omni_core.modelkit.weights import TensorReader
from omni_duplex.personaplex.codec_weights import rotated
from omni_duplex.personaplex.shape import CODES, Shape


@torch.no_grad()
def load_temporal(model: nn.Module, codes: nn.ModuleList, head: nn.Linear, shape: Shape, reader: TensorReader) -> None:
    """Fill the transformer over frames, the tables of the sixteen code streams and the head for text.

    Args:
        model: transformers' MoshiModel.
        codes: Tables of the agent's codes, then of the user's.
        head: The head.
        shape: Sizes.
        reader: The file.

    Raises:
        ConfigError: A tensor is missing or of another shape.
    """
    held = dict(model.named_parameters())
    held["embed_tokens.weight"].copy_(reader.take("text_emb.weight", shape.text_vocab + 1, shape.dim))
    held["norm.weight"].copy_(reader.take("out_norm.alpha", 1, 1, shape.dim)[0, 0])
    head.weight.copy_(reader.take("text_linear.weight", shape.text_vocab, shape.dim))
    for number, table in enumerate(codes):
        table.weight.copy_(reader.take(f"emb.{number}.weight", shape.card + 1, shape.dim))  # type: ignore[operator, union-attr]
    for number in range(shape.layers):
        name, ours = f"transformer.layers.{number}", f"layers.{number}"
        joined = reader.take(f"{name}.self_attn.in_proj_weight", 3 * shape.dim, shape.dim)
        _copy_projections(held, ours, joined.view(3, shape.dim, shape.dim), shape.heads)
        held[f"{ours}.self_attn.o_proj.linear.weight"].copy_(
            reader.take(f"{name}.self_attn.out_proj.weight", shape.dim, shape.dim)
        )
        held[f"{ours}.mlp.fc1.weight"].copy_(reader.take(f"{name}.gating.linear_in.weight", 2 * shape.ffn, shape.dim))
        held[f"{ours}.mlp.fc2.weight"].copy_(reader.take(f"{name}.gating.linear_out.weight", shape.dim, shape.ffn))
        _copy_norms(held, ours, name, shape.dim, reader)


def _copy_projections(held: dict[str, Any], layer: str, joined: Tensor, heads: int) -> None:
    held[f"{layer}.self_attn.q_proj.linear.weight"].copy_(rotated(joined[0], heads))
    held[f"{layer}.self_attn.k_proj.linear.weight"].copy_(rotated(joined[1], heads))
    held[f"{layer}.self_attn.v_proj.linear.weight"].copy_(joined[2])


def _copy_norms(held: dict[str, Any], layer: str, name: str, size: int, reader: TensorReader) -> None:
    held[f"{layer}.input_layernorm.weight"].copy_(reader.take(f"{name}.norm1.alpha", 1, 1, size)[0, 0])
    held[f"{layer}.post_attention_layernorm.weight"].copy_(reader.take(f"{name}.norm2.alpha", 1, 1, size)[0, 0])


@torch.no_grad()
def load_depth(model: nn.Module, shape: Shape, reader: TensorReader) -> None:
    """Fill the transformer over the codes of a frame. Of a file with steps for the user's codes, too, they are left out.

    Args:
        model: transformers' MoshiDepthDecoder.
        shape: Sizes.
        reader: The file.

    Raises:
        ConfigError: A tensor is missing or of another shape.
    """
    held = dict(model.named_parameters())
    size, inner = shape.depth_dim, shape.depth_ffn
    steps = sum(name.startswith("linears.") for name in reader.names)
    held["text_embed_tokens.weight"].copy_(reader.take("depformer_text_emb.weight", shape.text_vocab + 1, size))
    for code in range(CODES):
        held["input_projections.weight"][code] = reader.take(f"depformer_in.{code}.weight", size, shape.dim)
        held["lm_heads.weight"][code] = reader.take(f"linears.{code}.weight", shape.card, size)
    for code in range(CODES - 1):
        held[f"embed_tokens.{code}.weight"].copy_(reader.take(f"depformer_emb.{code}.weight", shape.card + 1, size))
    for number in range(shape.depth_layers):
        name, ours = f"depformer.layers.{number}", f"layers.{number}"
        joined = reader.take(f"{name}.self_attn.in_proj_weight", steps * 3 * size, size).view(steps, 3, size, size)
        for index, kind in enumerate("qkv"):
            held[f"{ours}.self_attn.{kind}_proj.linear.weight"].copy_(joined[:CODES, index])
        out = reader.take(f"{name}.self_attn.out_proj.weight", steps * size, size).view(steps, size, size)
        held[f"{ours}.self_attn.o_proj.linear.weight"].copy_(out[:CODES])
        for code in range(CODES):
            held[f"{ours}.mlp.fc1.weight"][code] = reader.take(f"{name}.gating.{code}.linear_in.weight", 2 * inner, size)
            held[f"{ours}.mlp.fc2.weight"][code] = reader.take(f"{name}.gating.{code}.linear_out.weight", size, inner)
        _copy_norms(held, ours, name, size, reader)
