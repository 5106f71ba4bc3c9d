"""From the talker to the codec: frames become payloads, in the talker's stage process.

A payload holds `codes` int32 [frames, codebooks]. The codec keeps a state for each stream, so no frame is sent twice. The first
payload of a continuation also holds `ref_codes`, the recording that the codec hears before the first new frame.

Talkers of the delay pattern make rows in which codebook k is k steps late: frame t is row[t + k, k] for each k. Rows before and
after the speech hold only pads, and so do the frames that they make.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_moss.stream import ChunkPolicy

CODES = "codes.audio"
"""Name under which the frames leave the talker: its output key ("codes", "audio"), joined."""
PAD = 1024
"""The code that stands for none: one above the last entry of every codebook."""
_NONE = np.zeros((0, 1), dtype=np.int32)


def talker2codec_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the next payload once enough frames are there, or what is left when the talker has ended."""
    return _next_chunk(handoff, _rows(output), finished=output.finished)


def talker2codec(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all frames of a request as one payload, an empty one if there are none."""
    return _payload(handoff, _rows(output), first=True)


def delayed_talker2codec_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the next payload as `talker2codec_async_chunk` does, for a talker of the delay pattern."""
    rows, late = _rows(output), handoff.state.get("late", _NONE)
    if len(late):
        rows = np.concatenate([late, rows]) if len(rows) else late
    frames = _align(rows)
    handoff.state["late"] = rows[len(frames) :]
    return _next_chunk(handoff, _spoken(frames), finished=output.finished)


def delayed_talker2codec(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all frames of a request as one payload, for a talker of the delay pattern."""
    return _payload(handoff, _spoken(_align(_rows(output))), first=True)


def _rows(output: StageOutput) -> np.ndarray[Any, Any]:
    return np.asarray(output.tensors.get(CODES, _NONE), dtype=np.int32)


def _align(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the frames [n - codebooks + 1, codebooks] that the rows [n, codebooks] complete."""
    books = rows.shape[1]
    count = max(len(rows) - books + 1, 0)
    return np.stack([rows[book : book + count, book] for book in range(books)], axis=1)


def _spoken(frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the frames that are not all pads."""
    return frames[(frames != PAD).any(axis=1)]


def _next_chunk(handoff: Handoff, frames: np.ndarray[Any, Any], *, finished: bool) -> Payload | None:
    state = handoff.state
    if "policy" not in state:
        state["policy"] = ChunkPolicy.read(handoff.options, handoff.inputs.get("initial_codec_chunk_frames"))
        state["pending"], state["sent"] = [], 0
    policy: ChunkPolicy = state["policy"]
    pending: list[np.ndarray[Any, Any]] = state["pending"]
    if len(frames):
        pending.append(frames)
    if not finished and sum(map(len, pending)) < policy.size(state["sent"]):
        return None
    state["pending"] = []
    state["sent"] += 1
    return _payload(handoff, np.concatenate(pending) if pending else _NONE, first=state["sent"] == 1)


def _payload(handoff: Handoff, frames: np.ndarray[Any, Any], *, first: bool) -> Payload:
    if not len(frames):
        return {}
    continued = handoff.inputs.get("ref_codes") if first else None
    return {"codes": frames} if continued is None else {"codes": frames, "ref_codes": np.asarray(continued, dtype=np.int32)}
