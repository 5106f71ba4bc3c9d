"""What a listener hears of one answer: when it begins, when it is audible, whether it stops in between (TT-13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np

from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_server.encoders import Samples
from omni_server.streaming import ClientGoneError

AUDIBLE = 0.01
"""Amplitude from which on a sample counts as sound: 40 dB below full scale."""
_TOLERANCE_S = 0.001
"""A gap shorter than this is the clock's, not the player's."""


class AudioMeter:
    """Follow an answer as a player hears it that starts with the first packet and never seeks. A context around the answer.

    Args:
        registry: Where the numbers go.
        delivery: `whole`, `audio`, `sse` or `websocket`.
        sample_rate: Hz of the answer.
        arrived: When the request came, on the clock.
        clock: Seconds.
    """

    def __init__(
        self,
        registry: Registry,
        delivery: str,
        sample_rate: int,
        arrived: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self.delivery = delivery
        self._rate = sample_rate
        self._arrived = arrived
        self._clock = clock
        self._has_failed = False
        self._has_begun = False
        self._is_audible = False
        self._seconds = 0.0
        self._last = arrived
        self._dry = 0.0
        """When the player has played all that it has."""

    def sent(self, samples: Samples) -> None:
        """Note that samples [n, channels] have left the server."""
        if not len(samples):
            return
        now = self._last = self._clock()
        if not self._has_begun:
            self._has_begun, self._dry = True, now
            self._observe(series.FIRST_PACKET_SECONDS, now - self._arrived)
        elif now - self._dry > _TOLERANCE_S:
            self._registry.inc(series.UNDERRUNS, delivery=self.delivery)
            self._registry.inc(series.UNDERRUN_SECONDS, now - self._dry, delivery=self.delivery)
            self._dry = now
        if not self._is_audible and (index := first_audible(samples)) is not None:
            self._is_audible = True
            self._observe(series.FIRST_AUDIBLE_SECONDS, self._dry + index / self._rate - self._arrived)
        self._seconds += len(samples) / self._rate
        self._dry += len(samples) / self._rate

    def failed(self) -> None:
        """Note that the answer's rest could not be made."""
        self._has_failed = True

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Count the answer by how it ended."""
        if isinstance(error, (ClientGoneError, asyncio.CancelledError)):
            ending = "aborted"
        elif error is not None or self._has_failed:
            ending = "failed"
        else:
            ending = "complete"
            if self._seconds:
                self._observe(series.REAL_TIME_FACTOR, (self._last - self._arrived) / self._seconds)
        self._registry.inc(series.ANSWERS, delivery=self.delivery, ending=ending)

    def _observe(self, what: series.Series, value: float) -> None:
        self._registry.observe(what, value, delivery=self.delivery)


def first_audible(samples: Samples) -> int | None:
    """Return the number of the first sample [n, channels] that can be heard, None if there is none."""
    loud = np.abs(samples).max(axis=1) >= AUDIBLE
    return int(loud.argmax()) if loud.any() else None
