"""Replicas that leave: their workers stop, and each is let go as soon as no request needs it any more."""

from __future__ import annotations

from collections.abc import Mapping

from omni_core.engine.flight import Flight
from omni_core.engine.replicas import ReplicaPool
from omni_core.engine.stage_process import StageProcess


class Departures:
    """Let replicas go.

    Args:
        pools: The stages' replicas, by stage id.
        flights: The requests that have not ended.
    """

    def __init__(self, pools: Mapping[int, ReplicaPool], flights: Mapping[str, Flight]) -> None:
        self._pools = pools
        self._flights = flights

    def look(self) -> None:
        """Let those go that no request needs; called whenever a request has ended or a replica has changed."""
        for stage_id, pool in self._pools.items():
            for process in pool.leaving:
                if not any(self._needs(flight, stage_id, process) for flight in self._flights.values()):
                    pool.let_go(process)

    def _needs(self, flight: Flight, stage_id: int, process: StageProcess) -> bool:
        """Return whether a request is in a process, or has nowhere else to go in its stage."""
        if (used := flight.opened.get(stage_id)) is not None:
            # Until its very end: what the stage has made may not have been fetched yet.
            return used is process
        wanted = flight.request.replicas.get(stage_id)
        return stage_id in flight.stages and (not self._pools[stage_id].ready if wanted is None else wanted == process.replica)
