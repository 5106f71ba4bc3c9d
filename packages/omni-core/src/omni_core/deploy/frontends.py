"""Frontends of a duplex server: which replica groups each of the K processes owns, and its share of the sessions.

`--api-server-count K` starts K processes that listen on one port. Each places sessions only in its own groups, and no slot is
lent to another (FE-01 to FE-07).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omni_core.capabilities import DuplexCapabilities
from omni_core.deploy.replica_groups import Group, Replica, fewest_replicas
from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig

FLAG = "--api-server-count"


@dataclass(frozen=True)
class Frontend:
    """One process that accepts duplex sessions."""

    index: int
    """Number of the process, from 0."""
    groups: tuple[int, ...]
    """Replica groups that it owns; empty under the legacy policy, which has none."""
    max_sessions: int
    """Most sessions it holds at once, those being opened or closed included; 0 accepts none."""

    @property
    def warmed_groups(self) -> tuple[int, ...]:
        """The groups that it warms up at start: its own, or none where it accepts no session (FE-06)."""
        return self.groups if self.max_sessions else ()


def check_frontends(count: int, policy: str, pipeline: PipelineConfig, capabilities: DuplexCapabilities) -> None:
    """Check that a pipeline's duplex sessions can be split among `count` frontends (FE-02).

    Args:
        count: Value of `--api-server-count`.
        policy: `replica_policy` of the deployment.
        pipeline: The pipeline, for messages.
        capabilities: What its duplex plugin can do.

    Raises:
        ConfigError: There are several, and the policy is legacy or a client may resume its session; both are named.
    """
    if count <= 1:
        return
    faults, hints = [], [f"{FLAG} 1"]
    if policy != "least_sessions":
        faults.append(f"replica_policy is {policy}")
        hints.append("replica_policy: least_sessions with max_sessions_per_replica")
    if capabilities.supports_session_resume:
        faults.append(f"the plugin {pipeline.duplex_plugin} can resume sessions, which only one frontend can hold")
        hints = hints[:1]
    if faults:
        raise ConfigError(
            f"pipeline {pipeline.model_type!r} cannot run {count} duplex frontends: {'; '.join(faults)}",
            where=FLAG,
            hint=f"set {' or '.join(hints)}",
            param="api_server_count",
        )


def frontends(count: int, groups: Sequence[Group], max_sessions: int, cap: int | None) -> tuple[Frontend, ...]:
    """Return the frontends of a deployment.

    Group g belongs to frontend `g % count`. The sessions are split evenly, the first frontends taking the rest, and bounded by
    the replicas that a frontend owns. A single frontend is not bounded: each replica's own limit does that (FE-07).

    Args:
        count: Value of `--api-server-count`.
        groups: The replica groups; empty under the legacy policy, which allows one frontend only.
        max_sessions: Most sessions in all.
        cap: `max_sessions_per_replica`; None only under the legacy policy.

    Raises:
        ConfigError: There are more frontends than groups, or groups of two frontends share a replica.
    """
    if count < 1:
        raise ConfigError(f"there must be at least 1 frontend, not {count}", where=FLAG, hint=f"set {FLAG} 1")
    if count == 1:
        return (Frontend(0, tuple(range(len(groups))), max_sessions),)
    assert cap is not None or not groups, "check_frontends refuses several frontends under the legacy policy"
    if count > len(groups):
        noun = "replica group" if len(groups) == 1 else "replica groups"
        raise ConfigError(
            f"{count} frontends are more than the {len(groups)} {noun}, of which each frontend needs one of its own",
            where=FLAG,
            hint=f"set {FLAG} {max(len(groups), 1)} or less, or run more replicas",
            param="api_server_count",
        )
    if faults := _shared_by_owners(count, groups):
        raise ConfigError(
            "\n".join([f"{count} frontends cannot share the {len(groups)} replica groups:", *(f"  - {f}" for f in faults)]),
            where=FLAG,
            hint=f"order replica_groups so that groups with a common replica have the same position modulo {count}, "
            f"or set {FLAG} 1",
            param="duplex_session.replica_groups",
        )
    return tuple(_frontend(index, count, groups, max_sessions, cap or 0) for index in range(count))


def _frontend(index: int, count: int, groups: Sequence[Group], max_sessions: int, cap: int) -> Frontend:
    owned = tuple(range(index, len(groups), count))
    share = max_sessions // count + (index < max_sessions % count)
    return Frontend(index, owned, min(share, fewest_replicas([groups[group] for group in owned]) * cap))


def _shared_by_owners(count: int, groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each replica that groups of several frontends use (FE-04)."""
    users: dict[Replica, list[int]] = {}
    for index, group in enumerate(groups):
        for replica in group.items():
            users.setdefault(replica, []).append(index)
    return [
        f"groups {_listed(indices)} use replica {replica} of stage {stage}, "
        f"but belong to frontends {_listed([index % count for index in indices])}"
        for (stage, replica), indices in sorted(users.items())
        if len({index % count for index in indices}) > 1
    ]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
