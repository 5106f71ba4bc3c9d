"""GET /metrics: every number of the pipeline and of this process, in the text that the scraper asks for."""

from __future__ import annotations

from collections.abc import Iterable

import anyio.to_thread
from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omni_core.observe.registry import Family, Spread
from omni_core.observe.series import Kind
from omni_server.context import ServerContext


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""

    async def metrics(request: Request) -> Response:
        # Read on the loop that changes the engine's state, written in a thread: there are many lines.
        families = context.engine.telemetry.families()
        accept = request.headers.get("accept", "")
        body, content_type = await anyio.to_thread.run_sync(write_text, families, accept)
        return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    return [Route("/metrics", metrics, methods=["GET"])]


def write_text(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return numbers as text, with those of this process, and its content type.

    Args:
        families: What to write.
        accept: The header that says whether the scraper wants OpenMetrics or the older format.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Given(families))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


class _Given:
    """A collector of what is given."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families as the client library has them."""
        return [as_metric(family) for family in self._families]


def as_metric(family: Family) -> Metric:
    """Return a family as the client library has it."""
    series = family.series
    base = series.name.removesuffix("_total") if series.kind is Kind.COUNTER else series.name
    metric = Metric(base, series.help, series.kind.value)
    for key, value in family.values.items():
        metric.add_sample(series.name, dict(key), value)
    for key, spread in family.spreads.items():
        _add_spread(metric, series.name, dict(key), spread)
    return metric


def _add_spread(metric: Metric, name: str, labels: dict[str, str], spread: Spread) -> None:
    seen = 0
    for bound, count in zip((*spread.bounds, float("inf")), spread.counts, strict=True):
        seen += count
        metric.add_sample(f"{name}_bucket", {**labels, "le": _bound(bound)}, seen)
    metric.add_sample(f"{name}_count", labels, seen)
    metric.add_sample(f"{name}_sum", labels, spread.total)


def _bound(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(float(value))
