"""An ear that needs no network: whatever is loud is speech."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from omni_duplex.model import Capabilities, Samples, SessionConfig
from omni_duplex.session import events as ev

LOUD = 0.1


class LoudEar:
    """Take blocks of audio that are loud for speech, and the first `quiet_ms` without any for its end.

    Args:
        rate: Hz of the audio.
        quiet_ms: How long it must be quiet.
    """

    def __init__(self, rate: int = 24_000, quiet_ms: int = 0) -> None:
        self._rate = rate
        self._quiet = rate * quiet_ms // 1000
        self._samples = 0
        self._since = 0
        self._speaks = False

    @classmethod
    def maker(cls, quiet_ms: int = 0) -> Callable[[Capabilities, SessionConfig], LoudEar]:
        """Return what makes an ear for each session."""

        def make(capabilities: Capabilities, config: SessionConfig) -> LoudEar:
            return cls(capabilities.input_rate, quiet_ms)

        return make

    def push(self, pcm: Samples) -> Sequence[ev.SpeechStarted | ev.SpeechStopped]:
        """Hear more audio."""
        at = self._samples * 1000 // self._rate
        self._samples += len(pcm)
        if len(pcm) and np.abs(pcm).max() > LOUD:
            self._since = self._samples
            if self._speaks:
                return []
            self._speaks = True
            return [ev.SpeechStarted(at)]
        if not self._speaks or self._samples - self._since < self._quiet:
            return []
        self._speaks = False
        return [ev.SpeechStopped(at)]

    def configure(self, config: SessionConfig) -> None:
        """Know no settings."""

    def reset(self) -> None:
        """Forget speech under way."""
        self._speaks = False
