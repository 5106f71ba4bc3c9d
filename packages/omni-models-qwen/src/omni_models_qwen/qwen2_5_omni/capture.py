"""Which of the thinker's states the talker reads. Imported in the engine core of the thinker's stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN


def captured(hf_config: Any) -> Mapping[str, int | Literal["last"]]:
    """Return what leaves the thinker, by name: its input embeddings and what its last norm gives."""
    return {EMBEDS: 0, HIDDEN: "last"}
