"""From the talker to Code2Wav: frames leave in whole windows, in the talker's stage process.

Code2Wav decodes windows of frames with some of the frames before them, so where windows begin is heard. They are cut by the
edge's options alone and travel with the frames: however the frames come together, one request is one sound.
"""

from __future__ import annotations

import numpy as np

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.qwen3_tts.chunks import ChunkPolicy, Frames
from omni_models_qwen.qwen3_tts.handoff import frames_of


def talker2code2wav_async_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Return the windows that are complete, and at the talker's end what is left."""
    cutter: WindowCutter | None = handoff.state.get("cutter")
    if cutter is None:
        cutter = WindowCutter(ChunkPolicy.read(handoff.options), output.load)
        handoff.state["cutter"] = cutter
    cut = cutter.add(frames_of(handoff, output), finished=output.finished)
    if cut is None:
        return None
    codes, sizes = cut
    return {"codes": codes, "windows": np.asarray(sizes, dtype=np.int32)}


def talker2code2wav(handoff: Handoff, output: StageOutput) -> Payload:
    """Return all frames of a request; their windows are Code2Wav's own."""
    return {"codes": frames_of(handoff, output)}


class WindowCutter:
    """One request's frames until their window is complete.

    Args:
        policy: Sizes of the windows.
        load: How full the stage was when the request's first frame came, 0 to 1.
    """

    def __init__(self, policy: ChunkPolicy, load: float) -> None:
        self._streams = policy.streams
        self._steady = policy.steady
        self._first = policy.ramp or (policy.first(load),)
        self._waiting: list[Frames] = []
        self._cut = 0

    def add(self, frames: Frames, *, finished: bool) -> tuple[Frames, list[int]] | None:
        """Take new frames [n, Q]; return the frames that leave now and the sizes of their windows, or None to wait for more.

        Args:
            frames: What the talker made since the last call.
            finished: Whether it has ended: what is left leaves, if only to say so.
        """
        self._waiting.append(frames)
        left = sum(map(len, self._waiting))
        sizes: list[int] = []
        while (self._streams or finished) and left >= (size := self._size()):
            sizes.append(size)
            self._cut += 1
            left -= size
        if finished and left:
            sizes.append(left)
            left = 0
        if not sizes and not finished:
            return None
        joined = np.concatenate(self._waiting)
        whole = len(joined) - left
        self._waiting = [joined[whole:]]
        return joined[:whole], sizes

    def _size(self) -> int:
        return self._first[self._cut] if self._cut < len(self._first) else self._steady
