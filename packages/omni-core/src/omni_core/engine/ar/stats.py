"""vLLM's own series, kept by stage and replica. Runs in the stage host, one engine in each.

vLLM registers its series in the process's Prometheus registry, and a second engine in one process takes the first one's out.
Here they are kept as plain numbers in the stage's registry instead, with the stage's labels, and travel to the server.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from omni_core.engine.vllm_bridge import PrometheusStatLogger
from omni_core.observe import series
from omni_core.observe.registry import Cell, Registry
from omni_core.observe.series import Kind, Series

_PARTS = ("_spec_decoding_cls", "_kv_connector_cls", "_ec_connector_cls", "_perf_metrics_cls")
_RENAMED = {"stage": "exported_stage", "replica": "exported_replica"}
"""vLLM's labels that bear the name of one of ours, renamed as Prometheus does."""


class _Metric:
    """What vLLM uses of a metric of `prometheus_client`."""

    kind: Kind

    def __init__(
        self,
        registry: Registry,
        name: str,
        documentation: str = "",
        labelnames: Sequence[str] = (),
        buckets: Sequence[float] = (),
        **ignored: Any,
    ) -> None:
        # prometheus_client adds the ending of counters where it is missing.
        name = f"{name.removesuffix('_total')}_total" if self.kind is Kind.COUNTER else name
        self._registry = registry
        self._names = [_RENAMED.get(label, label) for label in labelnames]
        bounds = tuple(sorted(float(bound) for bound in buckets if bound != float("inf")))
        self._series = Series(name, self.kind, documentation, (*series.STAGE, *self._names), bounds)
        if not self._names:
            self._bind({})

    def labels(self, *values: Any, **named: Any) -> Any:
        """Return the metric with these labels."""
        child = object.__new__(type(self))
        child._registry, child._names, child._series = self._registry, self._names, self._series
        given = dict(zip(self._names, values, strict=True)) if values else {_RENAMED.get(k, k): v for k, v in named.items()}
        child._bind({name: str(value) for name, value in given.items()})
        return child

    def _bind(self, labels: dict[str, str]) -> None:
        self._cell = self._registry.cell(self._series, **labels)
        if self.kind is not Kind.HISTOGRAM:
            # It exists before anything happens. An empty histogram says nothing, and there are many.
            self._cell.inc(0.0)


class _Counter(_Metric):
    kind = Kind.COUNTER

    def inc(self, amount: float = 1.0) -> None:
        """Count."""
        if amount:
            self._cell.inc(amount)


class _Gauge(_Metric):
    kind = Kind.GAUGE

    def set(self, value: float) -> None:
        """Set the value."""
        self._cell.set(float(value))

    def set_to_current_time(self) -> None:
        """Set the value to the seconds since 1970."""
        self.set(time.time())


class _Histogram(_Metric):
    kind = Kind.HISTOGRAM

    def observe(self, value: float) -> None:
        """Count a value."""
        self._cell.observe(float(value))


def stat_logger(registry: Registry) -> type:
    """Return the class of a stat logger for `AsyncLLM(stat_loggers=[...])` that writes into a registry.

    vLLM exchanges the classes of its metrics through these attributes itself, for Ray.
    """

    def bound(kind: type[_Metric]) -> staticmethod[..., _Metric]:
        return staticmethod(lambda *args, **kwargs: kind(registry, *args, **kwargs))

    metrics = {"_counter_cls": bound(_Counter), "_gauge_cls": bound(_Gauge), "_histogram_cls": bound(_Histogram)}
    parts: dict[str, Any] = {}
    for name in _PARTS:
        base = getattr(PrometheusStatLogger, name)
        parts[name] = type(base.__name__, (base,), metrics)
    own = {"omni_steps": registry.cell(series.STEP_SECONDS), "omni_batches": registry.cell(series.BATCH_SIZE)}
    return type("StageStatLogger", (_Recording, PrometheusStatLogger), {**metrics, **parts, **own})


class _Recording:
    """Adds our own two series to vLLM's."""

    omni_steps: Cell
    omni_batches: Cell

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        """Take in what one step has to say."""
        super().record(scheduler_stats, iteration_stats, *args, **kwargs)  # type: ignore[misc]
        if iteration_stats is None:
            return
        intervals = iteration_stats.inter_token_latencies_iter
        if batch := len(intervals) + len(iteration_stats.time_to_first_tokens_iter):
            self.omni_batches.observe(batch)
        if intervals:
            # On the engine core's clock: the request that waited least for this token was in the step before, too.
            self.omni_steps.observe(min(intervals))
