"""Who is told when a replica's process is gone, and when a replica is back. They are called on the orchestrator's loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_core.engine.stage_process import StageProcess


@dataclass
class Witnesses:
    """Functions to call."""

    deaths: list[Callable[[int, int, str], None]] = field(default_factory=list)
    """Called with the stage, the replica and the reason when a process that was ready is gone."""
    returns: list[Callable[[], None]] = field(default_factory=list)
    """Called when a replica is ready again that was gone, or leaves; `health` tells which ones are ready."""

    def died(self, process: StageProcess) -> None:
        """Tell of a death."""
        for told in self.deaths:
            told(process.stage.stage_id, process.replica, process.reason)

    def returned(self) -> None:
        """Tell that a replica is back, or leaves."""
        for told in self.returns:
            told()
