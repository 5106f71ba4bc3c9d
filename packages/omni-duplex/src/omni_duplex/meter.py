"""What is counted of a frontend's sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_duplex.model import AudioOut
from omni_duplex.placement import Placement

_TURN_ENDS = ("input_audio_buffer.speech_stopped", "input_audio_buffer.committed")


class Meter:
    """The numbers of one frontend process.

    Args:
        registry: Where they go.
        frontend: Number of the process.
    """

    def __init__(self, registry: Registry, frontend: int) -> None:
        self.registry = registry
        self._labels = {"frontend": str(frontend)}

    def placed(self, placement: Placement, groups: int) -> None:
        """Note how many slots are taken and free."""
        held = placement.by_group()
        for group in range(max(groups, 1)):
            self.registry.set(series.DUPLEX_SESSIONS, held[group], group=str(group), **self._labels)
        self.registry.set(series.DUPLEX_FREE_SLOTS, placement.free, **self._labels)

    def refused(self, code: str) -> None:
        """Count a session that could not be opened."""
        self.registry.cell(series.DUPLEX_REFUSALS, code=code, **self._labels).inc()

    def resumed(self) -> None:
        """Count a client that came back."""
        self.registry.cell(series.DUPLEX_RESUMES, **self._labels).inc()

    def heard_late(self, seconds: float) -> None:
        """Note by how much a unit was late."""
        self.registry.observe(series.DUPLEX_LATENESS_SECONDS, max(0.0, seconds), **self._labels)

    def session(self) -> SessionMeter:
        """Return what follows one session."""
        return SessionMeter(self.registry, self._labels)


class SessionMeter:
    """Follow the events of one session."""

    def __init__(self, registry: Registry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = dict(labels)
        self._turn_ended: float | None = None

    def sent(self, event: Mapping[str, Any], now: float) -> None:
        """Note an event on its way to the client."""
        kind = event["type"]
        if kind in _TURN_ENDS:
            self._turn_ended = now
        elif isinstance(event.get("delta"), AudioOut) and self._turn_ended is not None:
            self._registry.observe(series.DUPLEX_FIRST_AUDIO_SECONDS, now - self._turn_ended, **self._labels)
            self._turn_ended = None
        elif kind == "response.done":
            self._registry.cell(series.DUPLEX_RESPONSES, status=event["response"]["status"], **self._labels).inc()
        elif kind in ("session.closed", "session.expired"):
            self._registry.cell(series.DUPLEX_ENDINGS, reason=event["reason"], **self._labels).inc()
