"""From probabilities of speech to where it begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from omni_duplex.model import TurnDetection

SILENCE_MS = {"low": 2000, "medium": 1000, "auto": 1000, "high": 500}
"""How long the user must be silent for a turn to be over, by the eagerness of `semantic_vad`. Nothing here judges meaning: an
eager session only waits less."""
MIN_SPEECH_MS = 96
"""Shorter sounds are no speech."""


@dataclass(frozen=True)
class Boundary:
    """Speech began or ended."""

    began: bool
    at_ms: int
    """On the timeline of all audio that was heard."""


class Endpointer:
    """Find speech in a stream of probabilities.

    Args:
        detection: Thresholds and durations.
        frame_ms: Length of what a probability is of.
    """

    def __init__(self, detection: TurnDetection, frame_ms: int) -> None:
        self._frame_ms = frame_ms
        self.configure(detection)
        self._now_ms = 0
        self.reset()

    def configure(self, detection: TurnDetection) -> None:
        """Take other thresholds and durations."""
        semantic = detection.type == "semantic_vad"
        self._silence_ms = SILENCE_MS[detection.eagerness] if semantic else detection.silence_duration_ms
        self._enter = 0.5 if semantic else detection.threshold
        self._leave = max(self._enter - 0.15, 0.01)

    def skip(self, frames: int) -> None:
        """Let the timeline go on by frames that were not judged."""
        self._now_ms += frames * self._frame_ms

    def reset(self) -> None:
        """Forget speech under way; the timeline goes on."""
        self._speaks = False
        self._loud_ms = 0
        self._quiet_ms = 0

    def push(self, probability: float) -> Boundary | None:
        """Return whether speech began or ended with this frame.

        Speech begins where its first frame began, and ends where the silence began that ends it.
        """
        self._now_ms += self._frame_ms
        if not self._speaks:
            self._loud_ms = self._loud_ms + self._frame_ms if probability >= self._enter else 0
            if self._loud_ms < MIN_SPEECH_MS:
                return None
            self._speaks, self._quiet_ms = True, 0
            return Boundary(True, self._now_ms - self._loud_ms)
        self._quiet_ms = self._quiet_ms + self._frame_ms if probability < self._leave else 0
        if self._quiet_ms < self._silence_ms:
            return None
        self._speaks, self._loud_ms = False, 0
        return Boundary(False, self._now_ms - self._quiet_ms)
