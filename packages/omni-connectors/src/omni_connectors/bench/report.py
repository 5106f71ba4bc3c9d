"""What the samples come to: medians, throughput, ratios and processor time, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from omni_connectors.bench.run import Samples
from omni_connectors.bench.ways import MEMCPY, MESSAGE, SEGMENT

SCHEMA = "omni-bench-connector/1"
KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class Cell:
    """One way and one size."""

    way: str
    nbytes: int
    n: int
    p10_us: float
    """On a busy machine closer to what the way itself takes."""
    p50_us: float
    """From the call of put to the array that can be used, in the other process."""
    p90_us: float
    put_p50_us: float
    gb_per_s: float
    """One payload at a time."""
    stream_gb_per_s: float
    """With several payloads under way, as stages send them that do not wait for each other."""
    cpu_s_per_gb: float
    """Processor time of both processes."""
    of_memcpy: float | None
    """Throughput of one payload at a time as a share of memcpy's."""
    stream_of_memcpy: float | None
    """Throughput of a stream as a share of memcpy's."""
    times_segment: float | None
    """How many times faster than one segment for each payload."""


def make_cells(samples: Sequence[Samples]) -> list[Cell]:
    """Return a cell for each way and size."""
    medians = {(s.way, s.nbytes): statistics.median(s.took_ns) for s in samples}
    streams = {s.nbytes: _stream_rate(s) for s in samples if s.way == MEMCPY}
    return [
        _make_cell(s, medians.get((MEMCPY, s.nbytes)), medians.get((SEGMENT, s.nbytes)), streams.get(s.nbytes)) for s in samples
    ]


def _stream_rate(samples: Samples) -> float:
    return samples.nbytes * samples.streamed / samples.stream_ns


def _make_cell(samples: Samples, memcpy_ns: float | None, segment_ns: float | None, memcpy_rate: float | None) -> Cell:
    nbytes, took = samples.nbytes, statistics.median(samples.took_ns)
    deciles = statistics.quantiles(samples.took_ns, n=10, method="inclusive")
    if samples.way == MESSAGE:  # it carries no bytes that a rate could count
        samples, memcpy_ns, memcpy_rate, segment_ns = replace(samples, nbytes=0), None, None, None
    sent = samples.nbytes * len(samples.took_ns)
    return Cell(
        samples.way,
        nbytes,
        len(samples.took_ns),
        deciles[0] / 1e3,
        took / 1e3,
        deciles[-1] / 1e3,
        statistics.median(samples.put_ns) / 1e3,
        samples.nbytes / took,
        _stream_rate(samples),
        samples.cpu_ns / sent if sent else 0.0,  # nanoseconds for a byte are seconds for 10^9 bytes
        None if memcpy_ns is None else memcpy_ns / took,
        None if memcpy_rate is None else _stream_rate(samples) / memcpy_rate,
        None if segment_ns is None else segment_ns / took,
    )


def as_json(cells: Sequence[Cell], seconds: float, rounds: int) -> dict[str, object]:
    """Return everything as plain values."""
    return {"schema": SCHEMA, "seconds": seconds, "rounds": rounds, "cells": [asdict(cell) for cell in cells]}


def as_text(cells: Sequence[Cell]) -> str:
    """Return one table for each size."""
    lines: list[str] = []
    for nbytes in dict.fromkeys(cell.nbytes for cell in cells):
        lines += [size_name(nbytes), *_table([cell for cell in cells if cell.nbytes == nbytes]), ""]
    return "\n".join(lines).rstrip()


def _table(cells: Sequence[Cell]) -> list[str]:
    head = ["", "p10 us", "p50 us", "p90 us", "put us", "GB/s", "of memcpy", "x segment"]
    rows = [[*head, "stream GB/s", "of memcpy", "CPU s/GB", "n"], *map(_row, cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            text.ljust(width) if not index else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(cell: Cell) -> list[str]:
    times = [cell.way, *(f"{value:.1f}" for value in (cell.p10_us, cell.p50_us, cell.p90_us, cell.put_p50_us))]
    if cell.way == MESSAGE:
        return [*times, "", "", "", "", "", "", str(cell.n)]
    return [
        *times,
        f"{cell.gb_per_s:.2f}",
        "" if cell.of_memcpy is None else f"{cell.of_memcpy:.2f}",
        "" if cell.times_segment is None else f"{cell.times_segment:.1f}",
        f"{cell.stream_gb_per_s:.2f}",
        "" if cell.stream_of_memcpy is None else f"{cell.stream_of_memcpy:.2f}",
        f"{cell.cpu_s_per_gb:.2f}",
        str(cell.n),
    ]


def size_name(nbytes: int) -> str:
    """Return a size as people write it: `64 KiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"
