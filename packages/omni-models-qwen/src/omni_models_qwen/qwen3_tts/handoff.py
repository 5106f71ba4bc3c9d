"""From the talker to the codec: frames become payloads, in the talker's stage process.

A payload holds `codes` int32 [frames, codebooks]. The first payload of an in-context clone also holds `ref_codes`, the frames
of the reference that the decoder hears before the first new one, and `ref_total`, how many the reference has in all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.qwen3_tts.stream import ChunkPolicy

CODES = "codes.audio"
"""Name under which the frames leave the talker: its output key ("codes", "audio"), joined."""


def talker2code2wav_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the next payload once enough frames are there, or what is left when the talker has ended."""
    state = handoff.state
    if "policy" not in state:
        state["policy"] = ChunkPolicy.read(handoff.options, handoff.inputs.get("initial_codec_chunk_frames"))
        state["pending"], state["sent"] = [], 0
    policy: ChunkPolicy = state["policy"]
    state["pending"].append(_frames(handoff, output))
    waiting = sum(map(len, state["pending"]))
    if waiting < policy.size(state["sent"]) and not output.finished:
        return None
    payload = _payload(handoff, np.concatenate(state["pending"]), policy, first=state["sent"] == 0)
    state["pending"] = []
    state["sent"] += 1
    return payload


def talker2code2wav(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all frames of a request as one payload."""
    policy = ChunkPolicy.read(handoff.options)
    return _payload(handoff, _frames(handoff, output), policy, first=True)


def _frames(handoff: Handoff, output: StageOutput) -> np.ndarray[Any, Any]:
    """Return the new frames [n, codebooks]. The runner has dropped the frame of the end-of-speech token: it is no sound."""
    frames = output.tensors.get(CODES)
    if frames is None:
        return np.zeros((0, int(handoff.inputs["num_codes"])), dtype=np.int32)
    return np.asarray(frames, dtype=np.int32)


def _payload(handoff: Handoff, codes: np.ndarray[Any, Any], policy: ChunkPolicy, *, first: bool) -> Payload:
    payload: dict[str, Any] = {"codes": codes}
    reference = handoff.inputs.get("ref_codes")
    if first and reference is not None:
        reference = np.asarray(reference, dtype=np.int32)
        payload["ref_codes"] = reference[max(len(reference) - policy.ref_context, 0) :]
        payload["ref_total"] = len(reference)
    return payload
