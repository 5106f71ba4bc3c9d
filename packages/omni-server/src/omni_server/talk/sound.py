"""What a conversation hears with and speaks through: files or devices, all mono PCM16 at 24 kHz."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

RATE = 24_000
BLOCK = RATE // 25
"""Samples of one message: 40 ms."""
SILENCE = bytes(2 * BLOCK)


@dataclass(frozen=True)
class Played:
    """How much of an answer was heard when it was stopped."""

    item_id: str
    ms: int


class Source(AbstractContextManager[object], Protocol):
    """What the user says."""

    is_endless: bool
    """Whether it goes on until somebody stops it."""
    is_paced: bool
    """Whether its blocks come as fast as they play."""

    def blocks(self) -> AsyncIterator[bytes]:
        """Yield blocks of BLOCK samples."""
        ...


class Sink(AbstractContextManager[object], Protocol):
    """What plays or keeps the answers."""

    def play(self, pcm: bytes, item_id: str) -> None:
        """Take more of an answer."""
        ...

    def stop(self) -> Played | None:
        """Play no more of what came; return how much of it was heard, None where nothing was under way."""
        ...


def level(pcm: bytes) -> float:
    """Return the loudness of PCM16, in dB below full scale; -90 for silence."""
    import numpy as np

    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    power = float(np.mean(samples**2)) if len(samples) else 0.0
    return max(-90.0, 10 * float(np.log10(power + 1e-12)))
