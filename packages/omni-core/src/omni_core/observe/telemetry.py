"""All that is observed of one pipeline: its numbers, and its traces where they are configured. Server's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omni_core.errors import OmniError
from omni_core.observe.health import read_health
from omni_core.observe.observer import Observer, Observers
from omni_core.observe.registry import Family, Registry
from omni_core.observe.requests import RequestMetrics
from omni_core.observe.stats_line import StatsLine
from omni_core.observe.tracing import RequestTraces, configured_tracing


class Telemetry:
    """Numbers and traces of a pipeline.

    Args:
        health: Returns the engine's health.

    Raises:
        DependencyError: Traces are configured, but the packages that send them are not installed.
    """

    def __init__(self, health: Callable[[], Mapping[str, Any]]) -> None:
        self.registry = Registry()
        self._health = health
        self._tracing = configured_tracing()
        observers: list[Observer] = [RequestMetrics(self.registry)]
        if self._tracing is not None:
            observers.append(RequestTraces(self._tracing.tracer))
        self.observer = Observers(observers)

    @property
    def is_traced(self) -> bool:
        """Whether requests are traced."""
        return self._tracing is not None

    def families(self) -> list[Family]:
        """Return every number as it is now: what was counted, and what the engine's health says."""
        return [*read_health(self._health()).families(), *self.registry.families()]

    def stats_line(self) -> StatsLine:
        """Return what writes the lines of `--log-stats`."""
        return StatsLine(self.registry, self._health)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Count a request that is refused in this block as one that ended with that error."""
        try:
            yield
        except OmniError as error:
            self.observer.refused(error)
            raise

    def close(self) -> None:
        """Send the traces that are left, for some seconds at most. May be called twice."""
        tracing, self._tracing = self._tracing, None
        if tracing is not None:
            tracing.close()
