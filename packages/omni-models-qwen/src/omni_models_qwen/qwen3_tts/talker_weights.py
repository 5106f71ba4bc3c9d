"""The names of a checkpoint's tensors, and where in the talker each goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from omni_core.modelkit.backbone_weights import BackboneWeights, decoder_names
from omni_models_qwen.talking.frame_talker import ResizeMlp

_PREDICTOR = "talker.code_predictor."
_SPEAKER_ENCODER = "speaker_encoder."
"""Tensors of the reference encoder, which runs beside the input processor."""


class TalkerWeights(BackboneWeights):
    """Load a talker.

    Args:
        talker: The model.
        predictor_views: Where the code predictor's tensors go, by their names after `talker.code_predictor.`.
        layers: Layers of the backbone.
    """

    def __init__(self, talker: Any, predictor_views: Mapping[str, Tensor], layers: int) -> None:
        views = {_PREDICTOR + name: view for name, view in predictor_views.items()}
        super().__init__(talker, _own_names(layers), views, [_SPEAKER_ENCODER])


def _own_names(layers: int) -> dict[str, str]:
    """Return the checkpoint's names of everything but the code predictor, and the names in the talker."""
    names = {
        "talker.codec_head.weight": "codec_head.weight",
        "talker.model.codec_embedding.weight": "model.embed_tokens.weight",
        "talker.model.text_embedding.weight": "text_embedding.weight",
    }
    return names | ResizeMlp.names("text_projection") | decoder_names("talker.model", "model", layers)
