"""Speech for tests, made on the spot by espeak-ng, so that no recording is in the tree and nothing is fetched."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import numpy as np

from omni_duplex.audio.resample import Resampler
from omni_duplex.model import Samples

PROGRAM = "espeak-ng"
TIMEOUT_S = 20.0
_RATE = 22_050
"""Hz of what the program makes."""
_QUIET = 0.03
"""Of the peak: what is quieter before the first and after the last word is cut off, so that both ends are known."""
_HEADER = 44
"""Bytes before the samples."""


def missing_speech() -> str | None:
    """Return why no speech can be made here; None if it can."""
    return None if shutil.which(PROGRAM) else f"{PROGRAM} is not installed; scripts/setup installs it where it may"


@cache
def _spoken(text: str) -> bytes:
    command = [PROGRAM, "-v", "en", "-s", "160", "--stdout", text]
    return subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S).stdout[_HEADER:]


def speak(text: str, rate: int = 24_000, level_db: float = -6.0) -> Samples:
    """Return a spoken text, from its first sound to its last.

    Args:
        text: English.
        rate: Hz.
        level_db: The peak, in dB below full scale.
    """
    pcm = np.frombuffer(_spoken(text), "<i2").astype(np.float32)
    loud = np.flatnonzero(np.abs(pcm) > _QUIET * np.abs(pcm).max())
    pcm = Resampler(_RATE, rate).push(pcm[loud[0] : loud[-1] + 1], last=True)
    scaled: Samples = (pcm * (10 ** (level_db / 20) / np.abs(pcm).max())).astype(np.float32)
    return scaled


def silence(seconds: float, rate: int = 24_000) -> Samples:
    """Return silence."""
    return np.zeros(round(seconds * rate), np.float32)
