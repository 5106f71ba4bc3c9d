"""When a light stage's waiting chunks are computed: at once, or when enough of them can share a step.

A model whose step costs nearly the same for one row and for sixteen gains much by waiting a few milliseconds for the others.
Two options say how: `dispatch_max_rows` and `dispatch_max_wait_ms`. A model sets them (`LightModel`), often from options of its
own pipeline; where it does not, the stage's `additional_config` may.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from omni_core.errors import ConfigError
from omni_core.runner import LightModel
from omni_core.stage import ResolvedStage

_DUE_S = 1e-6
"""What is due in less is due now: timers and sums of floats are not exact."""


@dataclass(frozen=True)
class DispatchGate:
    """Hold rows back until there are `rows` of them, or the oldest has waited `wait_s` seconds, whichever comes first."""

    rows: int = 1
    wait_s: float = 0.0

    @classmethod
    def of(cls, model: LightModel, stage: ResolvedStage, max_batch: int) -> DispatchGate:
        """Return the gate of a loaded model.

        Args:
            model: The model.
            stage: Its stage.
            max_batch: Most rows of one step; nobody waits for more.

        Raises:
            ConfigError: An option of the stage cannot be used.
        """
        given = stage.engine_args.get("additional_config") or {}
        rows = model.dispatch_max_rows or _number(given, "dispatch_max_rows", stage, least=1, is_whole=True) or 1
        wait_ms = model.dispatch_max_wait_ms or _number(given, "dispatch_max_wait_ms", stage, least=0) or 0.0
        return cls(min(int(rows), max_batch), wait_ms / 1000)

    def delay(self, rows: int, oldest: float, now: float) -> float:
        """Return how many seconds to wait for more rows, 0 to compute those that are there.

        Args:
            rows: How many wait; at least one.
            oldest: When the first of them came.
            now: The time, by the same clock.
        """
        if rows >= self.rows:
            return 0.0
        left = oldest + self.wait_s - now
        return left if left > _DUE_S else 0.0


def _number(given: Any, key: str, stage: ResolvedStage, *, least: int, is_whole: bool = False) -> float | None:
    value = given.get(key)
    if value is None:
        return None
    is_number = isinstance(value, int if is_whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        what = "a whole number" if is_whole else "a number of milliseconds"
        raise ConfigError(
            f"{key} must be {what} of at least {least}, not {value!r}",
            where=f"stage {stage.name}, additional_config",
            hint="correct it, or leave it out to compute chunks as they come",
        )
    return float(value)
