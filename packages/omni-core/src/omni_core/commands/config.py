"""`omni config show`: the resolved configuration of a model, and where each value comes from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from omni_core.commands.output import write, write_json, write_table
from omni_core.deploy.flags import add_deploy_flags, typed_flags
from omni_core.deploy.resolve import resolve_deployment
from omni_core.deploy.schema import DeployConfig
from omni_core.model_info import read_model_info
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage, Source

_SHOW = "Show what a model's stages would run with; nothing is started and no weight is read."


class ConfigCommand:
    """Show what a model's stages would run with, or what a deploy file may say."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        show = actions.add_parser("show", help="Show the resolved configuration.", description=_SHOW)
        show.add_argument("model", metavar="MODEL", help="Checkpoint folder, or name of a model on the Hugging Face Hub.")
        show.add_argument("--explain", action="store_true", help="Say where each value comes from.")
        show.add_argument("--json", action="store_true", help="Write JSON.")
        show.add_argument("--platform", metavar="NAME", help="Resolve for this platform instead of the one of this machine.")
        add_deploy_flags(show)
        actions.add_parser("schema", help="Write the JSON schema of deploy files, for editors.")

    def run(self, args: argparse.Namespace) -> int:
        """Write the configuration, or the schema."""
        if args.action == "schema":
            write_json(DeployConfig.model_json_schema())
            return 0
        flags = typed_flags(args)
        resolved = resolve_deployment(
            read_model_info(args.model, revision=flags.pop("revision", None), weights=False),
            deploy_config=flags.pop("deploy_config", None),
            stage_overrides=flags.pop("stage_overrides", None),
            flags=flags,
            platform=args.platform,
        )
        if args.json:
            write_json(as_plain(resolved, explain=args.explain))
        else:
            _write_text(resolved, explain=args.explain)
        return 0


def as_plain(resolved: ResolvedPipeline, *, explain: bool = False) -> dict[str, Any]:
    """Return a resolved pipeline as plain data; with `explain`, each value's layer and place beside it."""
    return {
        "pipeline": resolved.config.model_type,
        "model": resolved.model,
        "platform": resolved.platform,
        "files": list(resolved.files),
        "async_chunk": resolved.async_chunk,
        **dict(resolved.values),
        **({"sources": _plain_sources(resolved.sources)} if explain else {}),
        "stages": [_plain_stage(stage, explain=explain) for stage in resolved.stages],
    }


def _plain_stage(stage: ResolvedStage, *, explain: bool) -> dict[str, Any]:
    return {
        "stage_id": stage.stage_id,
        "name": stage.topology.model_stage,
        "type": str(stage.topology.execution_type),
        "architecture": stage.architecture,
        **dict(_fields(stage)),
        "inputs": [_plain_edge(edge) for edge in stage.inputs],
        "outputs": [_plain_edge(edge) for edge in stage.outputs],
        **({"sources": _plain_sources(stage.sources)} if explain else {}),
    }


def _plain_edge(edge: ResolvedEdge) -> dict[str, Any]:
    return {
        "from": edge.from_stage,
        "to": edge.to_stage,
        "connector": edge.connector,
        "options": dict(edge.options),
        "stream": dict(edge.stream),
        "async_chunk": edge.async_chunk,
    }


def _plain_sources(sources: Mapping[str, Source]) -> dict[str, dict[str, str]]:
    return {name: {"layer": source.layer, "place": source.place} for name, source in sources.items()}


def _fields(stage: ResolvedStage) -> list[tuple[str, Any]]:
    return [
        ("runner", stage.runner),
        ("model_runner", stage.model_runner),
        ("async_chunk", stage.async_chunk),
        ("devices", stage.devices),
        ("num_replicas", stage.num_replicas),
        ("env", dict(stage.env)),
        ("engine_args", dict(stage.engine_args)),
        ("sampling", dict(stage.sampling)),
    ]


def _write_text(resolved: ResolvedPipeline, *, explain: bool) -> None:
    write(f"pipeline {resolved.config.model_type} on {resolved.platform}")
    write(f"model    {resolved.model}")
    write(f"files    {', '.join(resolved.files) or 'none'}")
    write()
    top = {"async_chunk": resolved.async_chunk, **resolved.values}
    _write_values(top, resolved.sources, explain=explain)
    for stage in resolved.stages:
        write()
        write(f"stage {stage.name}, {stage.topology.execution_type}, {stage.architecture}")
        values = {name: value for name, value in _fields(stage) if name not in {"engine_args", "sampling", "env"}}
        values.update({f"env.{name}": value for name, value in stage.env.items()})
        values.update(stage.engine_args)
        values.update({f"sampling.{name}": value for name, value in stage.sampling.items()})
        _write_values(values, stage.sources, explain=explain)
        for edge in stage.outputs:
            write(f"  -> stage {edge.to_stage} through {edge.connector}, {'chunks' if edge.async_chunk else 'whole payloads'}")
            _write_values({**edge.options, **edge.stream}, {}, explain=False, indent="     ")


def _write_values(values: Mapping[str, Any], sources: Mapping[str, Source], *, explain: bool, indent: str = "  ") -> None:
    rows = []
    for name, value in values.items():
        row = [f"{indent}{name}", _text(value)]
        rows.append([*row, _why(sources.get(name))] if explain else row)
    write_table(rows)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _why(source: Source | None) -> str:
    if source is None:
        return "default"
    return f"{source.layer}  {source.place}".rstrip()


command = ConfigCommand()
