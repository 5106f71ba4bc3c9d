"""The rows of the benchmarks' table, and how they are printed."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HEADINGS = ("measurement", "n", "median", "unit", "ratio", "against")


@dataclass(frozen=True)
class Row:
    """One measurement."""

    measurement: str
    n: int
    """Number of samples."""
    median: float
    unit: str
    ratio: float | None = None
    """This median divided by the baseline's; None for a baseline."""
    against: str = ""
    """The baseline."""

    @classmethod
    def of(cls, measurement: str, samples: Sequence[float], unit: str, baseline: Row | None = None) -> Row:
        """Return the row of some samples, compared with a baseline of the same unit."""
        median = statistics.median(samples)
        if baseline is None:
            return cls(measurement, len(samples), median, unit)
        assert baseline.unit == unit
        return cls(measurement, len(samples), median, unit, median / baseline.median, baseline.measurement)


def as_json(rows: Iterable[Row]) -> str:
    """Return rows as JSON, one line."""
    return json.dumps([dataclasses.asdict(row) for row in rows])


def from_json(text: str) -> list[Row]:
    """Return the rows of `as_json`."""
    return [Row(**values) for values in json.loads(text)]


def as_table(rows: Iterable[Row]) -> str:
    """Return rows as an aligned table."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    right = {1, 2, 4}
    lines = [
        "  ".join(text.rjust(width) if column in right else text.ljust(width) for column, (text, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in cells)
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.measurement, str(row.n), f"{row.median:.4g}", row.unit, ratio, row.against
