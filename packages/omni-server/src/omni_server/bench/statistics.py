"""Summaries of many values, and ratios of two servers with their confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

RESAMPLES = 2000
CONFIDENCE = 0.95
_BATCH_VALUES = 1_000_000
"""Values drawn at once, for a bound on memory."""


@dataclass(frozen=True)
class Summary:
    """Some values in a few numbers."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float


def summarise(values: Sequence[float]) -> Summary | None:
    """Return the summary of some values, None if there are none. Percentiles between two values are interpolated."""
    if not values:
        return None
    array = np.asarray(values, np.float64)
    p50, p90, p99 = np.percentile(array, (50, 90, 99))
    low, high = float(array.min()), float(array.max())
    mean = min(max(float(array.mean()), low), high)  # rounding may carry the mean of equal values past them
    return Summary(len(array), mean, float(p50), float(p90), float(p99), low, high)


@dataclass(frozen=True)
class Ratio:
    """The second server's statistic divided by the first's."""

    value: float
    low: float
    """Lower end of the confidence interval."""
    high: float


STATISTICS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda values: values.mean(axis=-1),
    "p50": lambda values: np.percentile(values, 50, axis=-1),
    "p90": lambda values: np.percentile(values, 90, axis=-1),
}
"""What is compared: functions of values [..., n] that return [...]."""


def bootstrap_ratio(pairs: Sequence[tuple[float, float]], statistic: str, seed: int) -> Ratio | None:
    """Return how the second values relate to the first, with a bootstrap interval of `CONFIDENCE`.

    Pairs stay together when they are drawn: both requests had one prompt and one moment, and what these do to both cancels.

    Args:
        pairs: (first server's value, second server's value).
        statistic: Name in `STATISTICS`.
        seed: The same seed gives the same interval.

    Returns:
        None if there are fewer than two pairs, or the first server's statistic is not above 0.
    """
    if len(pairs) < 2:
        return None
    values = np.asarray(pairs, np.float64)
    first, second = values[:, 0], values[:, 1]
    function = STATISTICS[statistic]
    base = float(function(first))
    if base <= 0:
        return None
    random = np.random.default_rng(seed)
    batch = max(1, min(RESAMPLES, _BATCH_VALUES // len(pairs)))
    ratios: list[Values] = []
    for begin in range(0, RESAMPLES, batch):
        drawn = random.integers(0, len(pairs), (min(batch, RESAMPLES - begin), len(pairs)))
        bases = function(first[drawn])
        usable = bases > 0
        ratios.append(function(second[drawn])[usable] / bases[usable])
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(np.concatenate(ratios), (tail, 100 - tail))
    return Ratio(float(function(second)) / base, float(low), float(high))
