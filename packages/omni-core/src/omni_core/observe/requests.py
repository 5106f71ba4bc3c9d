"""The numbers of requests: an observer that counts and times what the orchestrator tells it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from omni_core.engine.messages import READER, Chunk, Consumed, FromHost, Output
from omni_core.errors import DeadlineError, NotFoundError, OmniError, OverloadedError, RequestError, StageDeadError
from omni_core.observe import series
from omni_core.observe.observer import Observer
from omni_core.observe.registry import FamilyChange, Registry

if TYPE_CHECKING:
    from omni_core.engine.flight import Flight
    from omni_core.engine.stage_process import StageProcess

REASONS = ("stop", "length", "abort", "invalid", "not_found", "overloaded", "deadline", "stage_dead", "error")
"""Why requests end. The first two are good ends; `abort` is the caller's wish, the others are errors of a kind each."""

_KINDS: tuple[tuple[type[OmniError], str], ...] = (
    (NotFoundError, "not_found"),
    (RequestError, "invalid"),
    (OverloadedError, "overloaded"),
    (DeadlineError, "deadline"),
    (StageDeadError, "stage_dead"),
)


def end_reason(flight: Flight, error: OmniError | None, aborted: bool) -> str:
    """Return one of `REASONS`."""
    if aborted:
        return "abort"
    if error is not None:
        return error_reason(error)
    if flight.finished != flight.finals:
        return "abort"
    return "length" if flight.finish_reason == "length" else "stop"


def error_reason(error: OmniError) -> str:
    """Return the one of `REASONS` that belongs to an error."""
    return next((reason for kind, reason in _KINDS if isinstance(error, kind)), "error")


def stage_labels(process: StageProcess) -> dict[str, str]:
    """Return the labels of a stage replica."""
    return {"stage": str(process.stage.stage_id), "replica": str(process.replica)}


class RequestMetrics(Observer):
    """Count requests and chunks in a registry, and take in what stages measure.

    Args:
        registry: Where the numbers go.
        clock: Seconds on the clock of the orchestrator's loop.
    """

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry
        self._clock = clock
        self._under_way: dict[str, dict[tuple[int, int, int], float]] = {}
        """For each request, when its chunks that are not computed yet could be fetched."""
        self._answered: set[str] = set()
        for reason in REASONS:
            registry.touch(series.REQUESTS, reason=reason)

    def began(self, flight: Flight) -> None:
        """Time the wait."""
        self.registry.observe(series.QUEUE_SECONDS, self._clock() - flight.arrived)

    def took(self, flight: Flight, process: StageProcess, message: FromHost) -> None:
        """Time chunks and first outputs."""
        now = self._clock()
        match message:
            case Chunk():
                edge = (process.stage.stage_id, message.to_stage)
                self._under_way.setdefault(flight.id, {})[*edge, message.sequence] = now
                self.registry.inc(series.CHUNKS, from_stage=str(edge[0]), to_stage=str(edge[1]))
            case Consumed() if message.to_stage != READER:
                sent = self._under_way.get(flight.id, {}).pop((message.from_stage, message.to_stage, message.sequence), None)
                if sent is not None:
                    self._note_chunk(message.from_stage, message.to_stage, now - sent)
            case Output() if flight.id not in self._answered:
                self._answered.add(flight.id)
                self.registry.observe(series.FIRST_OUTPUT_SECONDS, now - flight.arrived)

    def ended(self, flight: Flight, error: OmniError | None, aborted: bool) -> None:
        """Count the end, time good ones, and count what stages were told to drop."""
        under_way = self._under_way.pop(flight.id, {})
        self._answered.discard(flight.id)
        reason = end_reason(flight, error, aborted)
        self.registry.inc(series.REQUESTS, reason=reason)
        if reason in ("stop", "length"):
            now = self._clock()
            self.registry.observe(series.REQUEST_SECONDS, now - flight.arrived)
            for (from_stage, to_stage, _), sent in under_way.items():
                # What the last chunk was made into comes before the word that it was taken.
                self._note_chunk(from_stage, to_stage, now - sent)
            return
        for stage_id, process in flight.opened.items():
            if stage_id not in flight.done_stages:
                self.registry.inc(series.ABORTS, 1, **stage_labels(process), cause=reason)

    def refused(self, error: OmniError) -> None:
        """Count a request that was not taken in."""
        self.registry.inc(series.REQUESTS, reason=error_reason(error))

    def measured(self, process: StageProcess, changes: Sequence[FamilyChange]) -> None:
        """Add a stage's numbers; they bear its labels."""
        self.registry.apply(changes)

    def died(self, process: StageProcess) -> None:
        """Forget the present values of a process that is gone; what it counted stays."""
        self.registry.drop_gauges(**stage_labels(process))

    def _note_chunk(self, from_stage: int, to_stage: int, seconds: float) -> None:
        self.registry.observe(series.CHUNK_SECONDS, seconds, from_stage=str(from_stage), to_stage=str(to_stage))

    @property
    def tracked(self) -> int:
        """The number of requests that this remembers; none is left when none runs."""
        return len(self._under_way.keys() | self._answered)
