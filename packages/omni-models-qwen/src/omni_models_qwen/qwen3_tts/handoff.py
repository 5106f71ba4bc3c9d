"""From the talker to the codec: frames become payloads, in the talker's stage process.

A payload holds `codes` int32 [frames, codebooks]. The first payload of an in-context clone also holds `ref_codes`, the frames
of the reference that the decoder hears before the first new one, and `ref_total`, how many the reference has in all. A first
payload whose beginning the talker's process has decoded itself holds that `audio` float32 [samples, channels]: it marks the
frames of which the decoder makes its state only (TT-10).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.qwen3_tts.chunks import FRAME_S, Chunker, ChunkPolicy

CODES = "codes.audio"
"""Name under which the frames leave the talker: its output key ("codes", "audio"), joined."""
FIRST_AUDIO = "first_audio"
"""Name of the audio of a request's first frames, on the output that brings them."""


def talker2code2wav_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the next payload once enough frames are there, or what is left when the talker has ended."""
    chunker: Chunker | None = handoff.state.get("chunker")
    if chunker is None:
        policy = ChunkPolicy.read(handoff.options, handoff.inputs.get("initial_codec_chunk_frames"))
        chunker = Chunker(policy, output.load, handoff.inputs.get("frame_s", FRAME_S))
        handoff.state["chunker"] = chunker
    audio = output.tensors.get(FIRST_AUDIO)
    codes = chunker.add(frames_of(handoff, output), finished=output.finished, at_once=audio is not None)
    if codes is None:
        return None
    payload = _payload(handoff, codes, chunker.policy, first=chunker.sent == 1)
    return payload if audio is None else {**payload, "audio": audio}


def talker2code2wav(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all frames of a request as one payload."""
    policy = ChunkPolicy.read(handoff.options)
    return _payload(handoff, frames_of(handoff, output), policy, first=True)


def frames_of(handoff: Handoff, output: StageOutput) -> np.ndarray[Any, Any]:
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
