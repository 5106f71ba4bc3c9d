"""Reference recordings on their way into an encoder: checked once more where they are used, and brought to its rate.

`resample` needs soxr, which model packages that take recordings declare.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni_core.errors import RequestError

MIN_SECONDS = 1.0
MAX_SECONDS = 30.0


def check_samples(samples: NDArray[Any], sample_rate: int, *, mono: bool) -> NDArray[np.float32]:
    """Return a copy of a recording as float32, [n] if `mono`, otherwise [n, channels].

    Raises:
        RequestError: It has another form, is shorter or longer than MIN_SECONDS to MAX_SECONDS, or holds no finite numbers.
    """
    form = "mono floats [n]" if mono else "floats [n] or [n, channels]"
    is_shaped = samples.ndim == 1 or (not mono and samples.ndim == 2 and samples.shape[1] > 0)
    if not is_shaped or samples.dtype.kind != "f":
        raise RequestError(
            f"reference audio must be {form}, not {samples.dtype} {list(samples.shape)}",
            param="ref_audio",
            hint="send the decoded samples",
        )
    if sample_rate <= 0:
        raise RequestError(
            f"reference audio has the sample rate {sample_rate}", param="ref_audio", hint="send its samples per second"
        )
    seconds = len(samples) / sample_rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise RequestError(
            f"reference audio is {seconds:.2f} s long",
            param="ref_audio",
            hint=f"send {MIN_SECONDS:g} to {MAX_SECONDS:g} seconds of speech",
        )
    if not np.isfinite(samples).all():
        raise RequestError("reference audio has samples that are not finite", param="ref_audio", hint="send another file")
    # A copy, because what a payload carries may be read-only.
    return (samples if mono else samples.reshape(len(samples), -1)).astype(np.float32)


def resample(samples: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """Return [n] or [n, channels] at the rate `wanted`, exactly ceil(n * wanted / rate) samples long."""
    if rate == wanted:
        return samples
    import soxr

    size = -(-len(samples) * wanted // rate)
    made = soxr.resample(samples, rate, wanted, quality="HQ")[:size]
    padding = [(0, size - len(made)), *[(0, 0)] * (samples.ndim - 1)]
    return np.ascontiguousarray(np.pad(made, padding), dtype=np.float32)
