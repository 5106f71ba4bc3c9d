"""How the orchestrator runs a pipeline: deadlines, limits, choice of replicas. What stages compute does not depend on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from omni_core.errors import ConfigError
from omni_core.suggest import way_out


class LbPolicy(StrEnum):
    """How a stage's replica is chosen for a request, which it keeps for all its chunks (DV-10)."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    LEAST_QUEUE_LENGTH = "least-queue-length"


@dataclass(frozen=True)
class EngineOptions:
    """Deadlines and limits of a running pipeline."""

    stage_init_timeout_s: float = 300.0
    """Longest start of one replica."""
    init_timeout_s: float = 600.0
    """Longest start of all."""
    stage_heartbeat_timeout_s: float = 30.0
    """A stage, or its engine, that gives no sign of life for this long is killed. They give one every two seconds."""
    lb_policy: LbPolicy = LbPolicy.RANDOM
    """How a request's replica is chosen."""
    max_queued_requests: int = 1024
    """Requests that may wait for the entry stage to have room; 0 refuses what cannot run at once."""
    max_queue_time_s: float | None = None
    """Longest wait for room; None waits as long as the request's own deadline allows."""
    stall_timeout_s: float | None = 300.0
    """A running request for which no stage does anything for this long fails; None trusts its deadline alone."""


def with_timeouts(options: EngineOptions | None, stage_init_timeout: float | None, init_timeout: float | None) -> EngineOptions:
    """Return options with the timeouts that were given by themselves."""
    options = options or EngineOptions()
    if stage_init_timeout is not None:
        options = replace(options, stage_init_timeout_s=stage_init_timeout)
    if init_timeout is not None:
        options = replace(options, init_timeout_s=init_timeout)
    return options


def parse_lb_policy(name: str) -> LbPolicy:
    """Return a policy by its name.

    Raises:
        ConfigError: There is none of that name.
    """
    try:
        return LbPolicy(name)
    except ValueError:
        hint = way_out(name, [policy.value for policy in LbPolicy], "policies")
        raise ConfigError(f"there is no load-balancing policy {name!r}", where="--omni-lb-policy", hint=hint) from None
