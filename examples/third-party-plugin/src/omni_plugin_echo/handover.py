"""What stage 0 hands to stage 1, in the process of stage 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput

DEFAULT_CHUNK = 4


def whole(handoff: Handoff, output: StageOutput) -> Payload:
    """Hand on everything at once (`async_chunk: false`)."""
    return {"numbers": output.tensors["numbers"].reshape(-1), "voice": handoff.inputs["voice"]}


def chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Hand on numbers in groups of `chunk_characters`, the first one with the voice."""
    waiting: list[Any] = handoff.state.setdefault("numbers", [])
    waiting.append(output.tensors["numbers"].reshape(-1))
    if len(waiting) < int(handoff.options.get("chunk_characters", DEFAULT_CHUNK)) and not output.finished:
        return None
    payload: dict[str, Any] = {"numbers": np.concatenate(waiting)}
    waiting.clear()
    if not handoff.state.get("begun"):
        handoff.state["begun"] = True
        payload["voice"] = handoff.inputs["voice"]
    return payload
