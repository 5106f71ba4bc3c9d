"""The numbers that are read when somebody asks: how many requests run, and how each stage is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.observe import series
from omni_core.observe.registry import Registry

STATES = ("starting", "ready", "leaving", "restarting", "dead", "stopped")
"""The values of `stage_process.StageState`, which tests compare."""


def read_health(health: Mapping[str, Any]) -> Registry:
    """Return what an engine's `health()` says, as numbers."""
    found = Registry()
    queued = int(health.get("queued", 0))
    found.set(series.REQUESTS_WAITING, queued)
    found.set(series.REQUESTS_RUNNING, int(health.get("requests", 0)) - queued)
    for stage in health["stages"]:
        labels = {"stage": str(stage["stage_id"]), "replica": str(stage["replica"])}
        found.set(series.STAGE_INFO, 1, **labels, name=str(stage["name"]))
        found.set(series.STAGE_READY, int(stage["state"] == "ready"), **labels)
        for state in STATES:
            found.set(series.STAGE_STATE, int(stage["state"] == state), **labels, state=state)
        found.inc(series.STAGE_RESTARTS, int(stage.get("restarts", 0)), **labels)
        found.set(series.STAGE_REQUESTS, int(stage.get("in_flight", 0)), **labels)
        if "waiting" in stage and stage["state"] == "ready":
            found.set(series.STAGE_WAITING, int(stage["waiting"]), **labels)
    return found
