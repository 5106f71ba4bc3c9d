"""Who watches requests on their way: the orchestrator tells an `Observer` what happens to each, in the server's process.

Its methods are called on the orchestrator's loop for every request and message, so they return at once and raise nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_core.engine.flight import Flight
    from omni_core.engine.messages import FromHost
    from omni_core.engine.stage_process import StageProcess
    from omni_core.errors import OmniError
    from omni_core.observe.registry import FamilyChange


class Observer:
    """Watch and do nothing. Subclasses override what they want to know."""

    def accepted(self, flight: Flight) -> None:
        """A request has come; it runs now or waits. Called in its caller's task."""

    def began(self, flight: Flight) -> None:
        """A request runs: its entry stages are about to be opened."""

    def opened(self, flight: Flight, process: StageProcess) -> str:
        """A stage is about to know a request. Return the W3C `traceparent` that the stage works under, or an empty string."""
        return ""

    def took(self, flight: Flight, process: StageProcess, message: FromHost) -> None:
        """A stage said something about a request that has not ended."""

    def ended(self, flight: Flight, error: OmniError | None, aborted: bool) -> None:
        """A request has ended.

        Args:
            flight: The request. If there is no error and it is not complete, its caller went away.
            error: What its caller was told.
            aborted: Whether somebody asked for the end by the request's id.
        """

    def refused(self, error: OmniError) -> None:
        """A request was not taken in, and its caller was told why."""

    def measured(self, process: StageProcess, changes: Sequence[FamilyChange]) -> None:
        """A stage replica sent what it has measured."""

    def died(self, process: StageProcess) -> None:
        """A stage replica that was ready is gone."""


class Observers(Observer):
    """Tell several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def accepted(self, flight: Flight) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.accepted(flight)

    def began(self, flight: Flight) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.began(flight)

    def opened(self, flight: Flight, process: StageProcess) -> str:
        """Tell all, and return the one trace that there is."""
        return next((trace for trace in [observer.opened(flight, process) for observer in self._observers] if trace), "")

    def took(self, flight: Flight, process: StageProcess, message: FromHost) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.took(flight, process, message)

    def ended(self, flight: Flight, error: OmniError | None, aborted: bool) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.ended(flight, error, aborted)

    def refused(self, error: OmniError) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.refused(error)

    def measured(self, process: StageProcess, changes: Sequence[FamilyChange]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.measured(process, changes)

    def died(self, process: StageProcess) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.died(process)
