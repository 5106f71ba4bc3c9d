"""The part of a deployment that one of several frontends runs: its own replica groups, with their replicas and devices.

A replica belongs to one frontend, because groups that share one must have the same owner (FE-04). So each frontend process is a
whole server with fewer replicas, and nothing is shared between them but the port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from omni_core.deploy.devices import replica_devices
from omni_core.deploy.duplex import DuplexPlan
from omni_core.stage import ResolvedPipeline, ResolvedStage


def frontend_part(resolved: ResolvedPipeline, index: int) -> ResolvedPipeline:
    """Return what frontend `index` of a deployment runs. Its replicas and groups are numbered anew, from 0.

    Args:
        resolved: A deployment that was resolved for several frontends.
        index: Number of the frontend.
    """
    plan = resolved.duplex
    assert plan is not None, "only deployments with full-duplex sessions are resolved for several frontends"
    frontend = plan.frontends[index]
    owned = [plan.groups[group] for group in frontend.groups]
    numbers = {stage.stage_id: sorted({group[stage.stage_id] for group in owned}) for stage in resolved.stages}
    groups = tuple({stage: numbers[stage].index(replica) for stage, replica in group.items()} for group in owned)
    part = DuplexPlan(plan.settings, groups, (replace(frontend, groups=tuple(range(len(groups)))),))
    return replace(resolved, duplex=part, stages=tuple(_part(stage, numbers[stage.stage_id]) for stage in resolved.stages))


def _part(stage: ResolvedStage, replicas: Sequence[int]) -> ResolvedStage:
    lists = replica_devices(stage)
    own = [devices for replica in replicas if (devices := lists[replica]) is not None]
    return replace(stage, num_replicas=len(replicas), devices=",".join(own) if own else None)
