"""How a request's frames are cut into payloads on the way from the talker to the codec (TT-15). Runs in the talker's process.

The first payload decides when sound starts, the later ones how often it may stop. Three policies choose their sizes: fixed
(first payload, then all others), a ramp written down, and an adaptive one that waits as long as the listener has sound left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_core.modelkit.first_chunk import cut_request
from omni_models_qwen.qwen3_tts.stream import ramp_sizes

FRAME_S = 0.08
"""Seconds of audio in a frame of the 12 Hz codec, where the checkpoint does not say."""
_MIN_PACE_S = 1e-6
"""Seconds for a frame that no talker beats; frames that come together would have no pace at all."""

Frames = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Adaptive:
    """A payload is as large as the sound that the listener still has allows, and not much larger than the last one."""

    min_frames: int = 2
    margin_s: float = 0.05
    """Seconds of sound that should be left when the next payload arrives."""
    divisor: int = 15
    delta_min: int = 2
    """A payload has at most max(delta_min, steady / divisor) frames more than the one before it."""


@dataclass(frozen=True)
class ChunkPolicy:
    """How many frames go into each payload, and how much of a reference goes along."""

    steady: int = 25
    initial: int = 0
    """Size of the first payload; 0 leaves it to the stage's load."""
    ramp: tuple[int, ...] = ()
    """Sizes of the first payloads; beats `initial`."""
    adaptive: Adaptive | None = None
    """Beats `ramp`."""
    streams: bool = True
    """Whether payloads leave before the talker has ended."""
    ref_context: int = 25
    """Reference frames that precede the first payload; longer references keep their last ones (TT-08)."""

    @classmethod
    def read(cls, options: Mapping[str, Any], initial: int | None = None) -> ChunkPolicy:
        """Return the policy of an edge for one request.

        Args:
            options: The edge's stream options, checked by `stream.check_options`.
            initial: The request's own `initial_codec_chunk_frames`, which beats the configured one but not a ramp; 0 leaves
                the size to the load.
        """
        steady = int(options.get("codec_chunk_frames", 25))
        if initial is None:
            initial = min(int(options.get("initial_codec_chunk_frames") or 0), steady)
        else:
            initial = cut_request(initial, steady)
        adaptive = None
        if options.get("codec_chunk_adaptive"):
            adaptive = Adaptive(
                min_frames=min(int(options.get("codec_chunk_min_frames", Adaptive.min_frames)), steady),
                margin_s=float(options.get("codec_chunk_safety_margin_ms", Adaptive.margin_s * 1000)) / 1000,
                divisor=int(options.get("codec_chunk_ramp_divisor", Adaptive.divisor)),
                delta_min=int(options.get("codec_chunk_ramp_delta_min", Adaptive.delta_min)),
            )
        return cls(
            steady=steady,
            initial=initial,
            ramp=ramp_sizes(options.get("codec_chunk_ramp")) or (),
            adaptive=adaptive,
            streams=bool(options.get("codec_streaming", True)),
            ref_context=int(options.get("ref_code_context_frames", options.get("codec_left_context_frames", 25))),
        )

    def first(self, load: float) -> int:
        """Return the size of the first payload where no ramp has one, for a stage that is so full (0 to 1)."""
        return self.initial or initial_by_load(load, self.steady)


def initial_by_load(load: float, steady: int) -> int:
    """Return the power of two below or at `steady` for a first payload: 1 in an empty stage, the largest in a full one.

    A full stage is late with every payload, and a small one would only add work to it.
    """
    largest = max(steady.bit_length() - 1, 0)
    step = int(load * (largest + 1))
    return 1 << min(max(step, 0), largest)


class Chunker:
    """One request's frames until they leave.

    Args:
        policy: How they are cut.
        load: How full the stage was when the request's first frame came, 0 to 1.
        frame_s: Seconds of audio in a frame.
        clock: Seconds that pass; for tests.
    """

    def __init__(
        self, policy: ChunkPolicy, load: float, frame_s: float = FRAME_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.policy = policy
        self.sent = 0
        """Payloads that have left."""
        self._load = load
        self._frame_s = frame_s
        self._clock = clock
        self._waiting: list[Frames] = []
        self._last = 0
        self._frames_sent = 0
        self._seen = 0
        self._began: float | None = None
        self._now = 0.0
        self._first_sent = 0.0

    def add(self, frames: Frames, *, finished: bool, at_once: bool = False) -> Frames | None:
        """Take new frames [n, Q]; return those of the payload that leaves now, or None to wait for more.

        Args:
            frames: What the talker made since the last call.
            finished: Whether it has ended: what is left leaves, if only to say so.
            at_once: Whether what is there leaves whatever the policy says.
        """
        self._now = self._clock()
        if self._began is None and len(frames):
            self._began = self._now
        self._seen += len(frames)
        self._waiting.append(frames)
        waiting = sum(map(len, self._waiting))
        if not finished and not (at_once and waiting) and (not self.policy.streams or waiting < self._wanted()):
            return None
        joined, self._waiting = np.concatenate(self._waiting), []
        if self.sent == 0:
            self._first_sent = self._now
        self.sent += 1
        self._last = len(joined)
        self._frames_sent += len(joined)
        return joined

    def _wanted(self) -> int:
        """Return how many frames the next payload waits for."""
        policy = self.policy
        if policy.adaptive is not None:
            return policy.first(self._load) if self.sent == 0 else self._affordable(policy.adaptive)
        if policy.ramp:
            return policy.ramp[self.sent] if self.sent < len(policy.ramp) else policy.steady
        return policy.first(self._load) if self.sent == 0 else policy.steady

    def _affordable(self, adaptive: Adaptive) -> int:
        """Return how many frames the talker makes while the listener has sound left, within the policy's bounds."""
        assert self._began is not None
        affordable = adaptive.min_frames
        if self._seen > 1:  # the first frame's time is the prompt's; before the second there is no pace
            pace_s = max((self._now - self._began) / (self._seen - 1), _MIN_PACE_S)
            left_s = self._first_sent + self._frames_sent * self._frame_s - self._now - adaptive.margin_s
            affordable = sum(map(len, self._waiting)) + int(max(left_s, 0.0) / pace_s)
        grown = self._last + max(adaptive.delta_min, self.policy.steady // adaptive.divisor)
        return max(adaptive.min_frames, min(affordable, grown, self.policy.steady))
