"""Small videos, made where they are needed. PyAV is needed for it; it comes with omni-server."""

from __future__ import annotations

import io
from functools import cache

import numpy as np

SIZE = 64
"""Pixels along both sides."""
FRAMES_PER_SECOND = 8
SOUND_RATE = 16_000


@cache
def make_video(*, frames: int = 16, moves: int = 1, pitch: int | None = None) -> bytes:
    """Return an mp4.

    Args:
        frames: How many pictures it has.
        moves: How fast its colours move.
        pitch: Hz of the tone that is its sound; None makes it silent.
    """
    import av

    file = io.BytesIO()
    y, x = np.mgrid[:SIZE, :SIZE]
    with av.open(file, "w", format="mp4") as out:
        pictures = out.add_stream("mpeg4", rate=FRAMES_PER_SECOND)
        pictures.width = pictures.height = SIZE
        pictures.pix_fmt = "yuv420p"
        sound = None if pitch is None else out.add_stream("aac", rate=SOUND_RATE, layout="mono")
        for number in range(frames):
            colours = [4 * x + 16 * moves * number, 4 * y + 8 * moves * number, x + y + 30 * moves * number]
            picture = av.VideoFrame.from_ndarray((np.stack(colours, -1) % 256).astype(np.uint8), format="rgb24")
            out.mux(pictures.encode(picture))
        out.mux(pictures.encode())
        if sound is not None and pitch is not None:
            tone = np.sin(np.arange(SOUND_RATE * frames // FRAMES_PER_SECOND) * 2 * np.pi * pitch / SOUND_RATE)
            samples = av.AudioFrame.from_ndarray((8000 * tone).astype("<i2")[None], format="s16", layout="mono")
            samples.sample_rate = SOUND_RATE
            out.mux(sound.encode(samples))
            out.mux(sound.encode())
    return file.getvalue()
