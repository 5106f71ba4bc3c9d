"""Full-duplex sessions of a deployment: session mode, limits, and the plan of who places which session where.

The rules are DX, DP and FE of the contract. Replica groups are in `replica_groups.py`, frontends in `frontends.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from omni_core.capabilities import DuplexCapabilities
from omni_core.deploy.check import check_types
from omni_core.deploy.frontends import Frontend, check_frontends, frontends
from omni_core.deploy.notes import warn
from omni_core.deploy.replica_groups import Group, capacity, replica_groups
from omni_core.deploy.schema import DuplexSession, Positive
from omni_core.deploy.tree import Node
from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig
from omni_core.suggest import way_out

SessionMode = Literal["turn", "duplex"]
_MODES: dict[str, SessionMode] = {"turn": "turn", "duplex": "duplex"}
_FiniteSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DuplexSettings(DuplexSession):
    """The fields of `duplex_session` as they hold, defaults filled in (DX-02). `DuplexSession` says what each one means."""

    max_sessions: Positive = 1
    replica_policy: Literal["legacy", "least_sessions"] = "legacy"
    idle_ttl_s: _FiniteSeconds | None = 300.0
    disconnect_grace_s: _FiniteSeconds = 30.0
    reaper_interval_s: _FiniteSeconds = 5.0
    resume_replay_ttl_s: _FiniteSeconds = 60.0
    resume_replay_max_bytes_per_session: Positive = 8 * 1024**2
    max_pending_input_bytes_per_session: Positive = 16 * 1024**2
    max_pending_turns_per_session: Positive = 4
    warmup_frames: int = 0

    @property
    def places_sessions(self) -> bool:
        """Whether a replica group is reserved when a session opens."""
        return self.replica_policy == "least_sessions"

    @property
    def duplex_max_sessions(self) -> int:
        """What workers receive under this name: the limit of a replica, or of all sessions under the legacy policy (DX-03)."""
        if not self.places_sessions:
            return self.max_sessions
        assert self.max_sessions_per_replica is not None, "check_placement refuses least_sessions without it"
        return self.max_sessions_per_replica


@dataclass(frozen=True)
class DuplexPlan:
    """What a deployment's duplex sessions come to."""

    settings: DuplexSettings
    groups: tuple[Group, ...]
    """Replica groups; empty under the legacy policy, which places requests and not sessions."""
    frontends: tuple[Frontend, ...]
    """The processes that accept sessions."""


def check_session_mode(value: object, pipeline: PipelineConfig, where: str = "") -> SessionMode:
    """Return the session mode of a deployment (DY-07).

    Args:
        value: `session_mode` as written; None where no file sets it.
        pipeline: The pipeline, whose default holds if it has a duplex plugin.
        where: The place of the value.

    Raises:
        ConfigError: The value is no mode, the pipeline has no duplex sessions, or it has them and nobody chose.
    """
    name = f"pipeline {pipeline.model_type!r}"
    if value is None and pipeline.duplex_plugin is None:
        return "turn"
    written, value = value, pipeline.default_session_mode if value is None else value
    if value is None:
        raise ConfigError(
            f"{name} needs session_mode turn or duplex: it has the duplex plugin {pipeline.duplex_plugin} and no default",
            where=where,
            hint="set session_mode in a deploy file",
            param="session_mode",
        )
    mode = _MODES.get(value) if isinstance(value, str) else None
    if mode is None:
        field = "default_session_mode" if written is None else "session_mode"
        raise ConfigError(
            f"{field} of {name} is {value!r}", where=where, hint=way_out(value, _MODES, "session modes"), param="session_mode"
        )
    if mode == "duplex" and pipeline.duplex_plugin is None:
        raise ConfigError(
            f"session_mode is 'duplex', but {name} has no duplex sessions",
            where=where,
            hint="set session_mode: turn, or choose a pipeline with a duplex_plugin",
            param="session_mode",
        )
    return mode


def read_settings(node: Node | None) -> DuplexSettings:
    """Return the settings of `duplex_session`, merged from all files.

    A null means the default, except for `idle_ttl_s`, where it means that idle sessions never end.

    Raises:
        ConfigError: A field is unknown, or a value has the wrong type or is out of range; the message names each one.
    """
    if node is None:
        return DuplexSettings()
    assert node.is_mapping, "the schema of deploy files makes sure of it"
    given = node.with_items({key: item for key, item in node.items() if item.value is not None or key == "idle_ttl_s"})
    check_types(DuplexSettings, given, name="duplex_session.")
    return DuplexSettings.model_validate(given.plain())


def check_placement(
    settings: DuplexSettings,
    pipeline: PipelineConfig,
    capabilities: DuplexCapabilities,
    *,
    distributed: Collection[str] = (),
    node: Node | None = None,
) -> None:
    """Check that sessions can be placed by `least_sessions` (DP-01, DP-08, DP-09); under legacy there is nothing to check.

    Args:
        settings: The limits.
        pipeline: The pipeline, for messages.
        capabilities: What its duplex plugin can do.
        distributed: Flags that ask for coordinator or distributed routing, as typed; empty for a local deployment.
        node: `duplex_session` as written, for the place in messages.

    Raises:
        ConfigError: The limit of a replica is missing or more than the plugin supports, or the deployment is distributed; one
            message names all of it.
    """
    cap = settings.max_sessions_per_replica
    if not settings.places_sessions:
        _warn_without_effect(settings, node)
        return
    faults: list[tuple[str, str, str]] = []
    if cap is None:
        fault = "replica_policy least_sessions needs max_sessions_per_replica"
        faults.append(("replica_policy", fault, "set max_sessions_per_replica: 1 or more"))
    elif cap > 1 and not capabilities.supports_multi_session_same_replica:
        fault = f"max_sessions_per_replica is {cap}, but the plugin does not support concurrent sessions on one replica"
        faults.append(("max_sessions_per_replica", fault, "set max_sessions_per_replica: 1"))
    if distributed:
        flags = ", ".join(distributed)
        fault = f"replica_policy least_sessions is for local deployments on one host, and {flags} asks for distributed routing"
        faults.append(("replica_policy", fault, f"leave out {flags}, or set replica_policy: legacy"))
    if faults:
        field = faults[0][0]
        raise ConfigError(
            f"duplex sessions of pipeline {pipeline.model_type!r} with the plugin {pipeline.duplex_plugin}: "
            + "; ".join(text for _, text, _ in faults),
            where=_place(node, field),
            hint="; ".join(way for _, _, way in faults),
            param=f"duplex_session.{field}",
        )


def _warn_without_effect(settings: DuplexSettings, node: Node | None) -> None:
    for field in ("max_sessions_per_replica", "replica_groups"):
        if getattr(settings, field) is not None:
            where = _place(node, field) or "duplex_session"
            warn(f"{where}: {field} has no effect under replica_policy legacy")


def _place(node: Node | None, field: str) -> str:
    return "" if node is None else node.find([field]).place


def resolve_duplex(
    node: Node | None,
    pipeline: PipelineConfig,
    replicas_by_stage: Mapping[int, int],
    capabilities: DuplexCapabilities,
    *,
    frontend_count: int = 1,
    distributed: Collection[str] = (),
) -> DuplexPlan:
    """Return the plan of a deployment whose session mode is duplex; no process is started and no plugin imported.

    Args:
        node: `duplex_session`, merged from all files; None where no file has it.
        pipeline: The pipeline.
        replicas_by_stage: How many replicas each stage has.
        capabilities: What the pipeline's duplex plugin can do.
        frontend_count: Value of `--api-server-count`.
        distributed: Flags that ask for coordinator or distributed routing, as typed.

    Raises:
        ConfigError: A value is wrong, or the values do not fit together or the plugin.
    """
    settings = read_settings(node)
    check_placement(settings, pipeline, capabilities, distributed=distributed, node=node)
    check_frontends(frontend_count, settings.replica_policy, pipeline, capabilities)
    groups: tuple[Group, ...] = ()
    if settings.places_sessions:
        groups = replica_groups(settings.replica_groups, replicas_by_stage, _place(node, "replica_groups"))
    split = frontends(frontend_count, groups, settings.max_sessions, settings.max_sessions_per_replica)
    plan = DuplexPlan(settings, groups, split)
    _warn_about_slots(plan, node)
    return plan


def _warn_about_slots(plan: DuplexPlan, node: Node | None) -> None:
    """Warn about sessions that can never open, and about frontends that accept none."""
    if not plan.settings.places_sessions:
        return
    where, wanted = _place(node, "max_sessions") or "duplex_session", plan.settings.max_sessions
    if idle := [str(frontend.index) for frontend in plan.frontends if not frontend.max_sessions]:
        listed = f"frontend {', '.join(idle)} of {len(plan.frontends)}"
        warn(f"{where}: {listed} accepts no session, because max_sessions is {wanted}")
    admitted = admitted_sessions(plan)
    if admitted < wanted:
        warn(f"{where}: max_sessions is {wanted}, but at most {admitted} can be open at once")


def admitted_sessions(plan: DuplexPlan) -> int:
    """Return how many sessions can be open at once at most, which can be less than `max_sessions` (DP-04, FE-06)."""
    if not plan.settings.places_sessions:
        return plan.settings.max_sessions
    cap = plan.settings.duplex_max_sessions
    rooms = (capacity([plan.groups[index] for index in frontend.groups], cap) for frontend in plan.frontends)
    return sum(min(frontend.max_sessions, room) for frontend, room in zip(plan.frontends, rooms, strict=True))
