"""Which of the thinker's states the talker reads. Imported in the engine core of the thinker's stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN


def captured(hf_config: Any) -> Mapping[str, int | Literal["last"]]:
    """Return the layers whose outputs leave the thinker, by name: 0 is the embeddings, k the output of layer k-1."""
    return {EMBEDS: 0, HIDDEN: int(hf_config.talker_config.accept_hidden_layer)}
