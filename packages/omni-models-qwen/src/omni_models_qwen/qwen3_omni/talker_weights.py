"""The names of a checkpoint's tensors, and where in the talker each goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from omni_core.modelkit.backbone_weights import ATTENTION, GATED_MLP, BackboneWeights, decoder_names
from omni_models_qwen.talking.frame_talker import ResizeMlp
from omni_models_qwen.talking.marks import EMBEDDINGS

_PREDICTOR = "talker.code_predictor."
_OTHERS = ("thinker.", "code2wav.")
"""Tensors that other stages read."""


class TalkerWeights(BackboneWeights):
    """Load a talker.

    Args:
        talker: The model.
        predictor_views: Where the code predictor's tensors go, by their names after `talker.code_predictor.`.
        layers: Layers of the backbone.
        experts: Experts of a layer.
    """

    def __init__(self, talker: Any, predictor_views: Mapping[str, Tensor], layers: int, experts: int) -> None:
        names = {
            "talker.codec_head.weight": "codec_head.weight",
            "talker.model.codec_embedding.weight": "model.embed_tokens.weight",
        }
        names |= ResizeMlp.names("text_projection") | ResizeMlp.names("hidden_projection")
        names |= decoder_names("talker.model", "model", layers, _sparse_layer(experts))
        views = {_PREDICTOR + name: view for name, view in predictor_views.items()}
        super().__init__(talker, names, {**views, EMBEDDINGS: talker.marks}, _OTHERS)


def _sparse_layer(experts: int) -> Sequence[str]:
    """Return the tensors of a layer with experts, of which one is shared."""
    parts = [f"mlp.experts.{number}.{name}" for number in range(experts) for name in GATED_MLP]
    parts += [f"mlp.shared_expert.{name}" for name in GATED_MLP]
    return (*ATTENTION, "mlp.gate", "mlp.shared_expert_gate", *parts)
