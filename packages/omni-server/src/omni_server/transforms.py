"""Change audio between the model and the encoder: another sample rate, or another tempo."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from omni_core.errors import RequestError
from omni_server.encoders import Samples

OFFERED_RATES = (8000, 16000, 24000, 48000)
"""Rates in Hz that speech is commonly wanted at."""


def sample_rates(native: int) -> tuple[int, ...]:
    """Return the rates that audio of `native` Hz is offered at: its own, and whole fractions of it.

    A whole fraction makes the length exact: `frames / factor`, streamed or not.
    """
    return tuple(sorted({native, *(rate for rate in OFFERED_RATES if rate < native and native % rate == 0)}))


class Resampler:
    """Resample a stream; the pieces together equal the whole resampled at once.

    Args:
        native: Hz of the input.
        wanted: Hz of the output, one of `sample_rates(native)`.
        channels: Number of channels.

    Raises:
        RequestError: `wanted` is not offered; the hint lists what is.
    """

    def __init__(self, native: int, wanted: int, channels: int) -> None:
        self._channels = channels
        self._stream = None
        if wanted == native:
            return
        check_sample_rate(native, wanted)
        import soxr  # 0.1 s that most servers do not need

        self._stream = soxr.ResampleStream(native, wanted, channels, dtype="float32")

    def push(self, samples: Samples, *, last: bool = False) -> Samples:
        """Return the output [m, channels] that is ready after `samples` [n, channels]; `last` flushes the rest."""
        if self._stream is None:
            return samples
        if not last and not len(samples):
            return samples
        out: Samples = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32), last=last)
        return out.reshape(-1, self._channels)


def check_sample_rate(native: int, wanted: int | None) -> None:
    """Refuse a rate that audio of `native` Hz is not offered at.

    Raises:
        RequestError: The hint lists the rates.
    """
    offered = sample_rates(native)
    if wanted is not None and wanted not in offered:
        hint = "use one of " + ", ".join(map(str, offered))
        raise RequestError(f"sample_rate {wanted} is not offered", param="sample_rate", hint=hint)


def change_tempo(samples: Samples, sample_rate: int, speed: float) -> Samples:
    """Return `samples` [n, channels] spoken `speed` times as fast (0.25 to 4) at the same pitch.

    FFmpeg's `atempo` does it by overlapping windows; the length is n / speed to within a window.
    """
    if speed == 1.0 or not len(samples):
        return samples
    import av
    from av.filter import Graph

    channels = samples.shape[1]
    layout = "mono" if channels == 1 else "stereo"
    time_base = Fraction(1, sample_rate)
    graph = Graph()
    nodes = [graph.add_abuffer(format="flt", sample_rate=sample_rate, layout=layout, time_base=time_base)]
    nodes += [graph.add("atempo", f"{factor:.6f}") for factor in _tempo_factors(speed)]
    nodes += [graph.add("aformat", "sample_fmts=flt"), graph.add("abuffersink")]
    graph.link_nodes(*nodes).configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, np.float32).reshape(1, -1), format="flt", layout=layout)
    frame.sample_rate, frame.time_base, frame.pts = sample_rate, time_base, 0
    graph.push(frame)
    graph.push(None)
    pieces = [np.zeros((0, channels), np.float32)]
    while True:
        try:
            pieces.append(graph.pull().to_ndarray().reshape(-1, channels))
        except (av.EOFError, av.BlockingIOError):
            return np.concatenate(pieces)


def _tempo_factors(speed: float) -> list[float]:
    """Return factors whose product is `speed`, none below 0.5, which one `atempo` cannot do."""
    factors = []
    while speed < 0.5:
        factors.append(0.5)
        speed /= 0.5
    return [*factors, speed]
