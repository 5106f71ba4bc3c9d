"""The edge between the two stages: codes go on as they are made."""

from __future__ import annotations

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput


def stage2code2wav(handoff: Handoff, output: StageOutput) -> Payload:
    """Return the codes of a whole request."""
    return stage2code2wav_async_chunk(handoff, output) or {}


def stage2code2wav_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the codes of an output; the answer to a prompt has none."""
    codes = output.tensors.get("codes")
    return None if codes is None else {"codes": codes}
