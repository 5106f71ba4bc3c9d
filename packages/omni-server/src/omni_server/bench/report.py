"""The results of a run, in the form that is written as JSON and shown as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omni_core import __version__
from omni_server.bench.endpoint import GAP, Endpoint, Measure
from omni_server.bench.level import Level, Outcome
from omni_server.bench.plan import Load
from omni_server.bench.run import BenchRun
from omni_server.bench.statistics import STATISTICS, Ratio, Summary, bootstrap_ratio, summarise

SCHEMA = "omni-bench/1"


@dataclass(frozen=True)
class ServerResult:
    """What one server did in one level."""

    url: str
    sent: int
    succeeded: int
    errors: dict[str, int]
    """Failures by kind, the most frequent first."""
    error_examples: dict[str, str]
    """One detail of each kind."""
    requests_per_s: float
    """Successful requests in the level's time."""
    produced_per_s: float
    """Seconds of audio, or what else the endpoint produces, in the level's time."""
    measures: dict[str, Summary]
    """By the names of the endpoint's measures; only of requests that succeeded."""


@dataclass(frozen=True)
class Comparison:
    """The second server against the first, in one level."""

    measure: str
    statistic: str
    pairs: int
    """Blocks in which both servers succeeded."""
    ratio: Ratio


@dataclass(frozen=True)
class LevelResult:
    """One level."""

    load: Load
    complete: bool
    """Whether it reached its bound; False if it was interrupted."""
    unfinished: int
    """Requests without an end, after an interrupt."""
    wall_s: float
    client_cpu_share: float
    """CPU time of the benchmark itself by the level's time; 1 is one core, and more than that it cannot use."""
    late_p99_s: float
    """How much later than it was due a request was sent; 0 in closed loops."""
    servers: tuple[ServerResult, ...]
    comparisons: tuple[Comparison, ...]


def level_result(level: Level) -> LevelResult:
    """Return the result of a level that has ended or was interrupted."""
    outcomes = level.outcomes()
    by_server = [[outcome for outcome in outcomes if outcome.server == index] for index in range(len(level.plan.urls))]
    servers = tuple(
        _server_result(url, own, level.endpoint, level.wall_s) for url, own in zip(level.plan.urls, by_server, strict=True)
    )
    late = summarise([outcome.late_s for outcome in outcomes])
    comparisons = tuple(_compare(by_server[0], by_server[1], level)) if len(by_server) == 2 else ()
    return LevelResult(
        load=level.load,
        complete=level.complete,
        unfinished=level.unfinished,
        wall_s=level.wall_s,
        client_cpu_share=level.cpu_share,
        late_p99_s=late.p99 if late else 0.0,
        servers=servers,
        comparisons=comparisons,
    )


def _server_result(url: str, outcomes: Sequence[Outcome], endpoint: Endpoint, wall_s: float) -> ServerResult:
    good = [outcome.digest for outcome in outcomes if outcome.digest.error is None]
    bad = [outcome.digest for outcome in outcomes if outcome.digest.error is not None]
    errors = dict(Counter(str(digest.error) for digest in bad).most_common())
    examples = {str(digest.error): digest.detail for digest in reversed(bad)}
    measures: dict[str, Summary] = {}
    for measure in endpoint.measures:
        if measure is GAP:
            values = [gap for digest in good for gap in digest.gaps_s]
        else:
            values = [digest.measures[measure.name] for digest in good if measure.name in digest.measures]
        if summary := summarise(values):
            measures[measure.name] = summary
    produced = sum(digest.measures.get(endpoint.produced.name, 0.0) for digest in good)
    seconds = max(wall_s, 1e-9)
    return ServerResult(url, len(outcomes), len(good), errors, examples, len(good) / seconds, produced / seconds, measures)


def _compare(first: Sequence[Outcome], second: Sequence[Outcome], level: Level) -> list[Comparison]:
    others = {outcome.block: outcome.digest for outcome in second}
    blocks = [(outcome.digest, others[outcome.block]) for outcome in first if outcome.block in others]
    found: list[Comparison] = []
    for measure in (measure for measure in level.endpoint.measures if measure.decides):
        pairs = [
            (one.measures[measure.name], two.measures[measure.name])
            for one, two in blocks
            if measure.name in one.measures and measure.name in two.measures
        ]
        found += [
            Comparison(measure.name, statistic, len(pairs), ratio)
            for statistic in STATISTICS
            if (ratio := bootstrap_ratio(pairs, statistic, level.seed))
        ]
    return found


def as_json(run: BenchRun, results: Sequence[LevelResult], started_at: str) -> dict[str, Any]:
    """Return everything about a run as plain data; docs/bench.md describes it. It holds no header and so no key."""
    plan, endpoint = run.plan, run.endpoint
    return {
        "schema": SCHEMA,
        "omni_version": __version__,
        "started_at": started_at,
        "endpoint": endpoint.name,
        "urls": list(plan.urls),
        "body": {name: value for name, value in endpoint.body("").items() if name != "input"},
        "requests": plan.bounds.requests,
        "duration_s": plan.bounds.duration_s,
        "warmup": plan.warmup,
        "timeout_s": plan.timeout_s,
        "seed": plan.seed,
        "prompts": len(plan.prompts),
        "measures": [{"name": item.name, "title": item.title, "unit": item.unit} for item in endpoint.measures],
        "levels": [
            {**asdict(result), "requests": [_request(outcome) for outcome in level.outcomes()]}
            for level, result in zip(run.levels, results, strict=True)
        ],
    }


def _request(outcome: Outcome) -> dict[str, Any]:
    digest = outcome.digest
    return {
        "number": outcome.number,
        "block": outcome.block,
        "server": outcome.server,
        "started_s": outcome.started_s,
        "late_s": outcome.late_s,
        "ended_s": outcome.ended_s,
        "error": digest.error,
        "detail": digest.detail,
        **digest.measures,
        "gaps": len(digest.gaps_s),
        "longest_gap_s": max(digest.gaps_s, default=None),
    }


def decisive(endpoint: Endpoint) -> tuple[Measure, ...]:
    """Return the measures that servers are compared by."""
    return tuple(measure for measure in endpoint.measures if measure.decides)
