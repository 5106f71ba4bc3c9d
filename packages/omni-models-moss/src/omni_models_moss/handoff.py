"""From the talker to the codec: frames become payloads, in the talker's stage process.

A payload holds `codes` int32 [frames, codebooks]. The codec keeps a state for each stream, so no frame is sent twice. The first
payload of a continuation also holds `ref_codes`, the recording that the codec hears before the first new frame.

Talkers of the delay pattern make rows in which codebook k is k steps late: frame t is row[t + k, k] for each k. Rows before and
after the speech hold only pads, and so do the frames that they make. A continuation begins with the rows of its prompt
(`begun_rows`): the talker completes the last frames of the recording, and the codec hears all of them.
"""

from __future__ import annotations

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_moss.checkpoint import CODEBOOK_SIZE
from omni_models_moss.delay.pattern import aligned
from omni_models_moss.rows import Frames
from omni_models_moss.stream import ChunkPolicy

CODES = "codes.audio"
"""Name under which the frames leave the talker: its output key ("codes", "audio"), joined."""
_NONE = np.zeros((0, 1), dtype=np.int32)


def talker2codec_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the next payload once enough frames are there, or what is left when the talker has ended."""
    return _next_chunk(handoff, _rows(output), finished=output.finished)


def talker2codec(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all frames of a request as one payload, an empty one if there are none."""
    return _payload(handoff, _rows(output), first=True)


def delayed_talker2codec_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the next payload as `talker2codec_async_chunk` does, for a talker of the delay pattern."""
    return _next_chunk(handoff, _completed(handoff, _rows(output)), finished=output.finished)


def delayed_talker2codec(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all frames of a request as one payload, for a talker of the delay pattern."""
    return _payload(handoff, _completed(handoff, _rows(output)), first=True)


def _completed(handoff: Handoff, rows: Frames) -> Frames:
    """Return the spoken frames that these rows complete; those of a recording that is continued are kept to be heard first."""
    state = handoff.state
    if "late" not in state:
        begun = handoff.inputs.get("begun_rows")
        state["late"] = _NONE if begun is None else np.asarray(begun, dtype=np.int32)
        state["begun"] = len(state["late"])
    if len(state["late"]):
        rows = np.concatenate([state["late"], rows]) if len(rows) else state["late"]
    frames = aligned(rows)
    state["late"] = rows[len(frames) :]
    begun, frames = np.split(frames, [min(state["begun"], len(frames))])
    state["begun"] -= len(begun)
    if len(begun):
        state["heard"] = np.concatenate([state["heard"], begun]) if "heard" in state else begun
    return frames[(frames != CODEBOOK_SIZE).any(axis=1)]


def _rows(output: StageOutput) -> Frames:
    return np.asarray(output.tensors.get(CODES, _NONE), dtype=np.int32)


def _next_chunk(handoff: Handoff, frames: Frames, *, finished: bool) -> Payload | None:
    state = handoff.state
    if "policy" not in state:
        state["policy"] = ChunkPolicy.read(handoff.options, handoff.inputs.get("initial_codec_chunk_frames"))
        state["pending"], state["sent"] = [], 0
    policy: ChunkPolicy = state["policy"]
    pending: list[Frames] = state["pending"]
    if len(frames):
        pending.append(frames)
    if not finished and not policy.is_due(sum(map(len, pending)), state["sent"]):
        return None
    state["pending"] = []
    state["sent"] += 1
    return _payload(handoff, np.concatenate(pending) if pending else _NONE, first=state["sent"] == 1)


def _payload(handoff: Handoff, frames: Frames, *, first: bool) -> Payload:
    if not len(frames):
        return {}
    continued = handoff.state.get("heard", handoff.inputs.get("ref_codes")) if first else None
    return {"codes": frames} if continued is None else {"codes": frames, "ref_codes": np.asarray(continued, dtype=np.int32)}
