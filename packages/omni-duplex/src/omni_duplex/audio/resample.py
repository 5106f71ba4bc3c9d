"""Change the rate of a stream of mono audio."""

from __future__ import annotations

import numpy as np

from omni_duplex.model import Samples


class Resampler:
    """Resample a stream. The pieces together do not depend on how the stream was cut.

    Args:
        native: Hz of the input.
        wanted: Hz of the output.
    """

    def __init__(self, native: int, wanted: int) -> None:
        self._stream = None
        if native != wanted:
            import soxr  # 0.1 s that sessions at the model's own rate do not need

            self._stream = soxr.ResampleStream(native, wanted, 1, dtype="float32")

    def push(self, pcm: Samples, *, last: bool = False) -> Samples:
        """Return the output [m] that is ready after `pcm` [n]; `last` brings the rest."""
        if self._stream is None or (not len(pcm) and not last):
            return pcm
        out: Samples = self._stream.resample_chunk(np.ascontiguousarray(pcm, np.float32), last=last)
        return out
