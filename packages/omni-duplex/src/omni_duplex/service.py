"""A frontend's duplex sessions, from a deployment: which model, with what ear, on which replicas."""

from __future__ import annotations

import logging
from typing import Any

from omni_core.deploy.frontends import Frontend
from omni_core.errors import ConfigError, DependencyError
from omni_core.plugins import PluginManager, plugin_manager
from omni_core.stage import ResolvedPipeline
from omni_core.suggest import way_out
from omni_core.target import load_target
from omni_duplex.manager import SessionManager, Tools
from omni_duplex.meter import Meter
from omni_duplex.model import Capabilities, DuplexModel, SessionConfig, TurnDetection
from omni_duplex.port import PipelineEngine, ports

logger = logging.getLogger(__name__)


def load_model(pipeline: ResolvedPipeline, plugins: PluginManager | None = None) -> DuplexModel:
    """Return the duplex model that a pipeline names: a target, or an id that a plugin offers.

    Raises:
        ConfigError: Nobody offers it, or its capabilities are not those that the pipeline declares.
        DependencyError: Its module cannot be imported.
    """
    name = pipeline.config.duplex_plugin
    where = f"pipeline {pipeline.config.model_type!r}"
    assert name is not None, "only pipelines with a plugin have duplex sessions"
    offered = _offered(plugins or plugin_manager())
    target = name if ":" in name else offered.get(name)
    if target is None:
        raise ConfigError(f"nobody offers the duplex model {name!r}", where=where, hint=way_out(name, offered, "duplex models"))
    kind: Any = load_target(target, where=where)
    model = kind(pipeline) if getattr(kind, "takes_pipeline", False) else kind()
    if not isinstance(model, DuplexModel):
        raise ConfigError(
            f"{target!r} is no DuplexModel", where=where, hint="name a subclass of omni_duplex.plugin.DuplexModel"
        )
    return model


def _offered(plugins: PluginManager) -> dict[str, str]:
    """Return the targets of the duplex models that plugins offer, by id.

    Raises:
        ConfigError: Two distributions offer one id.
    """
    offered: dict[str, str] = {}
    owners: dict[str, str] = {}
    for owner, models in plugins.collect("omni_duplex_models"):
        for name, target in models.items():
            if name in owners:
                raise ConfigError(
                    f"{owners[name]} and {owner} both offer the duplex model {name!r}",
                    where="omni_duplex_models",
                    hint=f"uninstall one, or leave it out with --no-plugin {owner}",
                )
            offered[name], owners[name] = target, owner
    return offered


def make_manager(engine: PipelineEngine, pipeline: ResolvedPipeline, frontend: Frontend | None = None) -> SessionManager:
    """Return the sessions of a frontend process.

    Args:
        engine: The pipeline's engine.
        pipeline: The deployment, whose `duplex` plan is there.
        frontend: This process's share; by default the whole.

    Raises:
        ConfigError: The model cannot be used as the deployment wants it.
        DependencyError: The file of weights of the speech detector was named, and cannot be loaded.
    """
    plan = pipeline.duplex
    assert plan is not None, "the session mode is duplex"
    model = load_model(pipeline)
    declared = pipeline.config.duplex_capabilities
    found = model.capabilities(plan.settings.duplex_max_sessions)
    if found.declared != declared and plan.settings.duplex_max_sessions > 1:
        raise ConfigError(
            f"the duplex model says {found.declared} and its pipeline {declared}",
            where=f"pipeline {pipeline.config.model_type!r}",
            hint="correct duplex_capabilities of the pipeline",
        )
    own = frontend or plan.frontends[0]
    meter = Meter(engine.telemetry.registry, own.index)
    tools = Tools(ear=_ears(plan.settings.server_vad_model_path, found), meter=meter)
    manager = SessionManager(model, plan, own, ports(engine, plan), tools)
    engine.watch_deaths(manager.replica_lost)
    engine.watch_returns(lambda: manager.replicas_ready(_ready(engine)))
    return manager


def _ready(engine: PipelineEngine) -> list[tuple[int, int]]:
    """Return the stage and the number of each replica that is ready."""
    return [(found["stage_id"], found["replica"]) for found in engine.health()["stages"] if found["state"] == "ready"]


def _ears(model_path: str | None, capabilities: Capabilities) -> Any:
    """Return what makes ears; None where there is no speech detector and nobody named one."""
    from omni_duplex.vad.ear import silero_ears

    try:
        return silero_ears(model_path)
    except DependencyError as error:
        if model_path is not None:
            raise
        if capabilities.turn_policy == "commit":
            logger.warning("clients must commit their turns themselves: %s", error)
        return None


def first_config(manager: SessionManager, model: str) -> SessionConfig:
    """Return the settings that a session begins with: the speech detector decides where there is one and the model does not."""
    capabilities = manager.capabilities
    listens = manager.has_ear and capabilities.turn_policy == "commit"
    voice = capabilities.voices[0] if capabilities.voices else None
    return SessionConfig(model=model, voice=voice, turn_detection=TurnDetection() if listens else None)
