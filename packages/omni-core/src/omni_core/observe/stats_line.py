"""`--log-stats`: one line on the log for each interval, from the same numbers as /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from omni_core.observe import series
from omni_core.observe.health import read_health
from omni_core.observe.registry import Registry
from omni_core.observe.series import Series

logger = logging.getLogger(__name__)


class StatsLine:
    """Write lines about what happened since the one before.

    Args:
        registry: The pipeline's numbers.
        health: Returns the engine's health.
    """

    def __init__(self, registry: Registry, health: Callable[[], Mapping[str, Any]]) -> None:
        self._registry = registry
        self._health = health
        self._before: dict[tuple[Any, ...], float] = {}

    async def run(self, interval_s: float) -> None:
        """Log a line for each interval, until it is cancelled."""
        self.line(interval_s)
        while True:
            await asyncio.sleep(interval_s)
            logger.info("%s", self.line(interval_s))

    def line(self, interval_s: float) -> str:
        """Return the line of an interval that ends now."""
        health = self._health()
        now = read_health(health)
        ends = {reason: self._grown(series.REQUESTS, reason=reason) for reason in ("stop", "length", "abort")}
        ended = self._grown(series.REQUESTS)
        bad = ended - sum(ends.values())
        parts = [
            f"{now.get(series.REQUESTS_RUNNING):g} running",
            f"{now.get(series.REQUESTS_WAITING):g} waiting",
            f"{ends['stop'] + ends['length']:g} done",
            f"{ends['abort']:g} aborted",
            f"{bad:g} failed",
        ]
        if (first := self._mean(series.FIRST_OUTPUT_SECONDS)) is not None:
            parts.append(f"first output {first:.3f} s")
        if (factor := self._mean(series.REAL_TIME_FACTOR)) is not None:
            parts.append(f"real-time factor {factor:.2f}")
        parts += [self._stage(stage, interval_s) for stage in health["stages"]]
        return f"last {interval_s:g} s: " + ", ".join(parts)

    def _stage(self, stage: Mapping[str, Any], interval_s: float) -> str:
        labels = {"stage": str(stage["stage_id"]), "replica": str(stage["replica"])}
        place = f"{stage['stage_id']}.{stage['replica']} ({stage['name']})"
        if stage["state"] != "ready":
            return f"stage {place} {stage['state']}"
        text = f"stage {place} {stage.get('in_flight', 0)} open"
        if tokens := self._grown(series.TOKENS, **labels):
            text += f" {tokens / interval_s:.1f} tokens/s"
        if audio := self._grown(series.AUDIO_SECONDS, **labels):
            text += f" {audio / interval_s:.2f} s audio/s"
        if (batch := self._mean(series.BATCH_SIZE, **labels)) is not None:
            text += f" batch {batch:.1f}"
        if (step := self._mean(series.STEP_SECONDS, **labels)) is not None:
            text += f" step {step * 1000:.1f} ms"
        return text

    def _grown(self, what: Series, **labels: str) -> float:
        return self._since((what.name, *labels.items()), self._registry.total(what, **labels))

    def _mean(self, what: Series, **labels: str) -> float | None:
        total = self._grown(what, **labels)
        count = self._since(("count", what.name, *labels.items()), self._registry.total_count(what, **labels))
        return total / count if count else None

    def _since(self, key: tuple[Any, ...], value: float) -> float:
        grown = value - self._before.get(key, 0.0)
        self._before[key] = value
        return grown
