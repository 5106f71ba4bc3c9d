"""Numbers in memory: what counts, what is present and how values are spread; and what of it travels between processes.

It depends on nothing but msgspec, so that stage processes need no client library. The server turns a registry into text.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from omni_core.observe.series import Kind, Series

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order of the series."""


@dataclass
class Spread:
    """A histogram's value: how many observations fell into each bucket, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int]
    """One for each bound, and one for what is above the last."""
    total: float = 0.0

    def add(self, counts: Iterable[int], total: float) -> None:
        """Add what another one has seen."""
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.total += total


@dataclass
class Family:
    """A series with its values."""

    series: Series
    values: dict[Labels, float] = field(default_factory=dict)
    spreads: dict[Labels, Spread] = field(default_factory=dict)
    touched: dict[Labels, None] = field(default_factory=dict)
    """What was changed since `Registry.take`."""

    def spread(self, key: Labels, bounds: tuple[float, ...]) -> Spread:
        """Return the histogram's value under a key, an empty one if there is none."""
        found = self.spreads.get(key)
        if found is None or found.bounds != bounds:
            # Other bounds than before: the process that measures was started anew with another configuration.
            found = self.spreads[key] = Spread(bounds, [0] * (len(bounds) + 1))
        return found


class Cell:
    """One labelled value of a registry."""

    __slots__ = ("_bounds", "_family", "_key", "_lock")

    def __init__(self, lock: threading.Lock, family: Family, key: Labels, bounds: tuple[float, ...]) -> None:
        self._lock = lock
        self._family = family
        self._key = key
        self._bounds = bounds

    def inc(self, amount: float = 1.0) -> None:
        """Add to a counter, or to a gauge."""
        family, key = self._family, self._key
        with self._lock:
            family.values[key] = family.values.get(key, 0.0) + amount
            family.touched[key] = None

    def set(self, value: float) -> None:
        """Set a gauge."""
        family, key = self._family, self._key
        with self._lock:
            if family.values.get(key) != value:
                family.values[key] = value
                family.touched[key] = None

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        with self._lock:
            spread = self._family.spread(self._key, self._bounds)
            spread.counts[bisect_left(self._bounds, value)] += 1
            spread.total += value
            self._family.touched[self._key] = None


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What became of one labelled value since the last time: its growth, or a gauge's present value."""

    labels: list[tuple[str, str]]
    value: float
    """Of a histogram, the growth of the sum."""
    counts: list[int] = []
    bounds: list[float] = []


class FamilyChange(msgspec.Struct, frozen=True, array_like=True):
    """What became of one series since the last time."""

    name: str
    kind: str
    help: str
    changes: list[Change]


class Registry:
    """The numbers of a process. Safe to use from several threads.

    Args:
        constant: Labels that every value gets, such as the stage and the replica.
    """

    def __init__(self, constant: Mapping[str, str] | None = None) -> None:
        self._constant = dict(constant or {})
        self._families: dict[str, Family] = {}
        self._lock = threading.Lock()

    def touch(self, series: Series, **labels: str) -> None:
        """Let a value exist, at zero."""
        self.cell(series, **labels).inc(0.0)

    def inc(self, series: Series, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter, or to a gauge."""
        self.cell(series, **labels).inc(amount)

    def set(self, series: Series, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.cell(series, **labels).set(value)

    def observe(self, series: Series, value: float, **labels: str) -> None:
        """Count a value in a histogram."""
        self.cell(series, **labels).observe(value)

    def cell(self, series: Series, **labels: str) -> Cell:
        """Return one labelled value, for those who change it often: its place is looked up once."""
        with self._lock:
            return Cell(self._lock, self._family(series), self._key(series, labels), series.buckets)

    def get(self, series: Series, **labels: str) -> float:
        """Return a value, of a histogram the sum; 0 where there is none."""
        family = self._families.get(series.name)
        if family is None:
            return 0.0
        key = self._key(series, labels)
        spread = family.spreads.get(key)
        return family.values.get(key, 0.0) if spread is None else spread.total

    def count(self, series: Series, **labels: str) -> int:
        """Return how many values a histogram has seen."""
        family = self._families.get(series.name)
        spread = family.spreads.get(self._key(series, labels)) if family is not None else None
        return 0 if spread is None else sum(spread.counts)

    def total(self, series: Series, **labels: str) -> float:
        """Return the sum of all values whose labels include these; of a histogram, the sum of its sums."""
        wanted = set(labels.items())
        with self._lock:
            family = self._families.get(series.name, Family(series))
            found = [value for key, value in family.values.items() if wanted <= set(key)]
            return sum(found) + sum(spread.total for key, spread in family.spreads.items() if wanted <= set(key))

    def total_count(self, series: Series, **labels: str) -> int:
        """Return how many values a histogram has seen under all labels that include these."""
        wanted = set(labels.items())
        with self._lock:
            family = self._families.get(series.name, Family(series))
            return sum(sum(spread.counts) for key, spread in family.spreads.items() if wanted <= set(key))

    def families(self) -> list[Family]:
        """Return a copy of everything, by the series' names."""
        with self._lock:
            return [
                Family(
                    family.series,
                    dict(family.values),
                    {key: Spread(s.bounds, list(s.counts), s.total) for key, s in family.spreads.items()},
                )
                for _, family in sorted(self._families.items())
            ]

    # Between processes

    def take(self) -> list[FamilyChange]:
        """Return what changed since the last time. Counters and histograms begin at zero again: growth travels, not totals."""
        with self._lock:
            return [change for family in self._families.values() if (change := _taken(family)) is not None]

    def apply(self, changes: Iterable[FamilyChange]) -> None:
        """Add what another process has taken."""
        with self._lock:
            for change in changes:
                family = self._family(Series(change.name, Kind(change.kind), change.help))
                for item in change.changes:
                    key = tuple((name, value) for name, value in item.labels)
                    if family.series.kind is Kind.GAUGE:
                        family.values[key] = item.value
                    elif family.series.kind is Kind.COUNTER:
                        family.values[key] = family.values.get(key, 0.0) + item.value
                    else:
                        family.spread(key, tuple(item.bounds)).add(item.counts, item.value)

    def drop_gauges(self, **labels: str) -> None:
        """Forget present values with these labels: whoever measured them is gone."""
        wanted = set(labels.items())
        with self._lock:
            for family in self._families.values():
                if family.series.kind is Kind.GAUGE:
                    for key in [key for key in family.values if wanted <= set(key)]:
                        del family.values[key]
                        family.touched.pop(key, None)

    # Under the lock

    def _family(self, series: Series) -> Family:
        return self._families.setdefault(series.name, Family(series))

    def _key(self, series: Series, labels: Mapping[str, str]) -> Labels:
        given = {**self._constant, **labels}
        fits = set(labels) <= set(series.labels) <= set(given)
        assert fits, f"{series.name} has the labels {series.labels}, not {given}"
        return tuple((name, given[name]) for name in series.labels)


def _taken(family: Family) -> FamilyChange | None:
    if not family.touched:
        return None
    changes = []
    for key in family.touched:
        labels = list(key)
        if (spread := family.spreads.get(key)) is not None:
            changes.append(Change(labels, spread.total, spread.counts, list(spread.bounds)))
            family.spreads[key] = Spread(spread.bounds, [0] * len(spread.counts))
        else:
            changes.append(Change(labels, family.values[key]))
            if family.series.kind is Kind.COUNTER:
                family.values[key] = 0.0
    family.touched.clear()
    return FamilyChange(family.series.name, family.series.kind.value, family.series.help, changes)
