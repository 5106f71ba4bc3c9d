"""The results of a run as text: one table for each level and, of several, one over all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from omni_server.bench.endpoint import Endpoint, Measure
from omni_server.bench.report import Comparison, LevelResult, ServerResult, decisive
from omni_server.bench.statistics import CONFIDENCE, Summary

BUSY_SHARE = 0.8
"""Share of one core from which the benchmark itself, which has one thread, may be what is measured."""
MOST_DECIMALS = 6
_NAMES = ("A", "B")


def as_text(results: Sequence[LevelResult], endpoint: Endpoint) -> str:
    """Return all tables."""
    lines: list[str] = []
    if results and len(results[0].servers) > 1:
        lines += [f"{name} = {server.url}" for name, server in zip(_NAMES, results[0].servers, strict=True)] + [""]
    for result in results:
        lines += [*_level(result, endpoint), ""]
    if len(results) > 1:
        lines += [*aligned(list(_overview(results, endpoint)), left=2), ""]
    return "\n".join(lines).rstrip()


def warnings(results: Sequence[LevelResult]) -> Iterator[str]:
    """Yield what makes a level's numbers doubtful."""
    for result in results:
        if result.client_cpu_share > BUSY_SHARE:
            share = f"{100 * result.client_cpu_share:.0f} %"
            yield f"{result.load.label}: the benchmark used {share} of the one core it can use; its numbers are partly its own"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return rows with the first `left` columns to the left and the others, numbers, to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _level(result: LevelResult, endpoint: Endpoint) -> Iterator[str]:
    interrupted = "" if result.complete else f", interrupted with {result.unfinished} requests unfinished"
    late = f", sent {_number(1000 * result.late_p99_s)} ms late (p99)" if result.load.kind == "open" else ""
    client = f"benchmark {100 * result.client_cpu_share:.0f} % of a core{late}"
    yield f"{result.load.label}: {result.wall_s:.1f} s{interrupted}; {client}"
    for index, server in enumerate(result.servers):
        yield "  " + _counts(server, endpoint, _NAMES[index] if len(result.servers) > 1 else server.url)
        for kind, count in server.errors.items():
            example = " ".join(server.error_examples[kind].split())[:100]
            yield f"    {count} x {kind}: {example}"
    rows = list(_measures(result.servers, endpoint))
    if len(rows) > 1:
        yield from (f"  {line}" for line in aligned(rows, left=2 if len(result.servers) > 1 else 1))
    if result.comparisons:
        yield f"  B / A, with {100 * CONFIDENCE:.0f} % intervals"
        yield from (f"  {line}" for line in aligned(list(_ratios(result.comparisons, endpoint)), left=2))


def _counts(server: ServerResult, endpoint: Endpoint, name: str) -> str:
    failed = server.sent - server.succeeded
    rate = f"{_number(server.requests_per_s)} requests/s, {_number(server.produced_per_s)} {endpoint.produced.title} s/s"
    return f"{name}: {server.sent} requests, {failed} failed, {rate}"


def _measures(servers: Sequence[ServerResult], endpoint: Endpoint) -> Iterator[list[str]]:
    several = len(servers) > 1
    yield ["measure", *([""] if several else []), "n", "mean", "p50", "p90", "p99", "max", "unit"]
    for measure in endpoint.measures:
        for index, server in enumerate(servers):
            if summary := server.measures.get(measure.name):
                yield [measure.title, *([_NAMES[index]] if several else []), *_cells(summary, measure)]


def _cells(summary: Summary, measure: Measure) -> list[str]:
    scale, unit = (1000.0, "ms") if measure.unit == "s" else (1.0, measure.unit)
    values = (summary.mean, summary.p50, summary.p90, summary.p99, summary.max)
    return [str(summary.n), *(_number(scale * value) for value in values), unit]


def _ratios(comparisons: Sequence[Comparison], endpoint: Endpoint) -> Iterator[list[str]]:
    titles = {measure.name: measure.title for measure in endpoint.measures}
    yield ["measure", "", "pairs", "ratio", "low", "high"]
    for item in comparisons:
        numbers = (f"{value:.3f}" for value in (item.ratio.value, item.ratio.low, item.ratio.high))
        yield [titles[item.measure], item.statistic, str(item.pairs), *numbers]


def _overview(results: Sequence[LevelResult], endpoint: Endpoint) -> Iterator[list[str]]:
    several = len(results[0].servers) > 1
    shown = [measure for measure in decisive(endpoint) if measure.unit == "s"]
    heads = [f"{measure.title}, ms: p50, p99" for measure in shown]
    yield ["load", "", "requests/s", f"{endpoint.produced.title} s/s", "failed", *heads]
    for result in results:
        for index, server in enumerate(result.servers):
            cells = [_number(server.requests_per_s), _number(server.produced_per_s), str(server.sent - server.succeeded)]
            for measure in shown:
                summary = server.measures.get(measure.name)
                cells.append(f"{_number(1000 * summary.p50)}, {_number(1000 * summary.p99)}" if summary else "-")
            yield [result.load.label, _NAMES[index] if several else "", *cells]


def _number(value: float) -> str:
    """Return a value with three digits that count, without an exponent."""
    if value == 0:
        return "0"
    return f"{value:.{min(max(2 - math.floor(math.log10(abs(value))), 0), MOST_DECIMALS)}f}"
