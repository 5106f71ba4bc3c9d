"""A resolved deployment as one flat deploy file: no base, no platform sections, every value written out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core import __version__
from omni_core.connector import ConnectorEntry
from omni_core.deploy.diff import compare
from omni_core.deploy.resolve import resolve_deployment
from omni_core.deploy.schema import DeployConfig
from omni_core.deploy.yaml_text import to_yaml
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.pipeline import ExecutionType
from omni_core.plugins import PluginManager
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage


def freeze(resolved: ResolvedPipeline, model: ModelInfo, manager: PluginManager) -> str:
    """Return `frozen_text`, having checked that it resolves to the same deployment on the same platform.

    Raises:
        ConfigError: It does not; the message names the fields.
    """
    text = frozen_text(resolved, manager)
    with tempfile.TemporaryDirectory(prefix="omni-freeze-") as folder:
        file = Path(folder, "frozen.yaml")
        file.write_text(text, encoding="utf-8")
        again = resolve_deployment(model, deploy_config=file, manager=manager, platform=resolved.platform)
    if again.config_hash != resolved.config_hash:
        fields = [item.field if item.stage is None else f"stage {item.stage} {item.field}" for item in compare(resolved, again)]
        raise ConfigError(
            f"a frozen file would not give the same deployment: {', '.join(fields) or 'the hash'} would change",
            hint="a plugin sets these for the platform, above all files (omni plugins --hook omni_platform_overrides)",
        )
    return text


def frozen_document(resolved: ResolvedPipeline, manager: PluginManager) -> dict[str, Any]:
    """Return the content of a deploy file that resolves to the same deployment.

    Connectors that no edge uses are left out. Environment variables that were written as `${NAME}` are their values here.

    Raises:
        ConfigError: An edge's connector is not one that a plugin offers.
    """
    names = _connector_names(manager)
    stages = {stage.stage_id: _stage(stage, resolved, names) for stage in resolved.stages}
    top: dict[str, Any] = {"pipeline": resolved.config.model_type, "async_chunk": resolved.async_chunk}
    for name, value in resolved.values.items():
        if name in DeployConfig.model_fields:
            top[name] = _plain(value)
        else:  # a field that the server reads, and that one stage has to say
            stages[0][name] = _plain(value)
    if connectors := _connectors(resolved, names):
        top["connectors"] = connectors
    return {**top, "stages": list(stages.values())}


def frozen_text(resolved: ResolvedPipeline, manager: PluginManager) -> str:
    """Return `frozen_document` as YAML, with what it was made from and its hash as comments."""
    lines = [
        f"# {resolved.config.model_type} on {resolved.platform}, resolved by omni-core {__version__}",
        f"# from {', '.join(resolved.files) or 'no deploy file'}",
        f"# config hash {resolved.config_hash}",
    ]
    return "\n".join([*lines, "", to_yaml(frozen_document(resolved, manager))])


def _stage(stage: ResolvedStage, resolved: ResolvedPipeline, names: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"stage_id": stage.stage_id}
    if stage.model != resolved.model:
        entry["model"] = stage.model
    entry |= {"model_runner": stage.model_runner, "async_chunk": stage.async_chunk, "devices": stage.devices}
    entry |= {"num_replicas": stage.num_replicas, **stage.restart.fields}
    if stage.env:
        entry["env"] = dict(stage.env)
    entry |= {name: _plain(value) for name, value in stage.engine_args.items()}
    references = {f"to_stage_{edge.to_stage}": _reference(edge, names) for edge in stage.outputs}
    if references:
        entry["output_connectors"] = references
    if stage.sampling:
        entry[_sampling_field(stage)] = _plain(stage.sampling)
    return entry


def _sampling_field(stage: ResolvedStage) -> str:
    pools = stage.topology.execution_type is ExecutionType.LLM_AR and stage.engine_args.get("runner") == "pooling"
    return "default_pooling_params" if pools else "default_sampling_params"


def _reference(edge: ResolvedEdge, names: Mapping[str, str]) -> Any:
    """Return what a stage says about its edge: a name under `connectors`, or the connector itself where it has no name."""
    return _spec(edge, names) if edge.connector == _name(edge, names) else edge.connector


def _connectors(resolved: ResolvedPipeline, names: Mapping[str, str]) -> dict[str, Any]:
    edges = [edge for stage in resolved.stages for edge in stage.outputs]
    return {edge.connector: _spec(edge, names) for edge in edges if edge.connector != _name(edge, names)}


def _spec(edge: ResolvedEdge, names: Mapping[str, str]) -> dict[str, Any]:
    extra = {**edge.options, **edge.stream}
    return {"name": _name(edge, names), **({"extra": _plain(extra)} if extra else {})}


def _name(edge: ResolvedEdge, names: Mapping[str, str]) -> str:
    if edge.target not in names:
        raise ConfigError(
            f"no plugin offers the connector {edge.target} of the edge from stage {edge.from_stage} to stage {edge.to_stage}",
            hint="freeze with the plugins that the deployment was resolved with",
        )
    return names[edge.target]


def _connector_names(manager: PluginManager) -> dict[str, str]:
    """Return the name of each connector by its target."""
    offers: list[ConnectorEntry] = [entry for _, entries in manager.collect("omni_connectors") for entry in entries]
    return {entry.target: entry.name for entry in offers}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
