"""`omni config show`: what a model's stages would run with."""

from __future__ import annotations

import argparse
from typing import Any

from omni_core.commands.config.arguments import add_deployment, resolve_arguments
from omni_core.commands.output import write, write_json
from omni_core.deploy.freeze import frozen_text
from omni_core.plugins import plugin_manager
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage

HELP = "Show the resolved configuration as a deploy file."
DESCRIPTION = "Show what a model's stages would run with, as a deploy file; nothing is started and no weight is read."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_deployment(parser)


def run(args: argparse.Namespace) -> int:
    """Write the configuration."""
    manager = plugin_manager()
    resolved = resolve_arguments(args, manager)
    if args.json:
        write_json(as_plain(resolved))
    else:
        write(frozen_text(resolved, manager).rstrip())
    return 0


def as_plain(resolved: ResolvedPipeline) -> dict[str, Any]:
    """Return a resolved pipeline as plain data, with what no deploy file can say: model classes, runners and the hash."""
    return {
        "pipeline": resolved.config.model_type,
        "model": resolved.model,
        "platform": resolved.platform,
        "config_hash": resolved.config_hash,
        "files": list(resolved.files),
        "warnings": list(resolved.warnings),
        "async_chunk": resolved.async_chunk,
        **dict(resolved.values),
        "stages": [_stage(stage) for stage in resolved.stages],
    }


def _stage(stage: ResolvedStage) -> dict[str, Any]:
    return {
        "stage_id": stage.stage_id,
        "name": stage.topology.model_stage,
        "type": str(stage.topology.execution_type),
        "architecture": stage.architecture,
        "runner": stage.runner,
        "model_runner": stage.model_runner,
        "async_chunk": stage.async_chunk,
        "devices": stage.devices,
        "num_replicas": stage.num_replicas,
        "env": dict(stage.env),
        "engine_args": dict(stage.engine_args),
        "sampling": dict(stage.sampling),
        "inputs": [_edge(edge) for edge in stage.inputs],
        "outputs": [_edge(edge) for edge in stage.outputs],
    }


def _edge(edge: ResolvedEdge) -> dict[str, Any]:
    return {
        "from": edge.from_stage,
        "to": edge.to_stage,
        "connector": edge.connector,
        "options": dict(edge.options),
        "stream": dict(edge.stream),
        "async_chunk": edge.async_chunk,
    }
