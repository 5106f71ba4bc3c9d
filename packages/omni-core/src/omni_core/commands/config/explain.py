"""`omni config explain`: each value, where it comes from, and what it wins over."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from omni_core.commands.config.arguments import add_deployment, resolve_arguments
from omni_core.commands.output import write, write_json, write_table
from omni_core.deploy.explain import Setting, pipeline_settings, setting_rows, stage_settings
from omni_core.errors import ConfigError
from omni_core.plugins import plugin_manager
from omni_core.stage import ResolvedPipeline
from omni_core.suggest import way_out

HELP = "Say for each value where it comes from and what it wins over."
DESCRIPTION = "Say for each stage and field the value, the layer and the place that win, and the values that lose."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_deployment(parser)
    parser.add_argument("--stage", metavar="N", type=int, help="Only this stage.")
    parser.add_argument("--field", metavar="NAME", help="Only this field: max_num_seqs, sampling.top_k, or top_k for short.")


def run(args: argparse.Namespace) -> int:
    """Write the settings."""
    resolved = resolve_arguments(args, plugin_manager())
    groups = _groups(resolved, args.stage, args.field)
    if args.json:
        settings = [setting.as_plain() for _, found in groups for setting in found]
        write_json({"config_hash": resolved.config_hash, "files": list(resolved.files), "settings": settings})
        return 0
    write(f"pipeline {resolved.config.model_type} on {resolved.platform}, config hash {resolved.config_hash}")
    write(f"files {', '.join(resolved.files) or 'none'}")
    for title, settings_of_group in groups:
        write()
        write(title)
        write_table(setting_rows(settings_of_group))
    return 0


def _groups(resolved: ResolvedPipeline, stage_id: int | None, field: str | None) -> list[tuple[str, Sequence[Setting]]]:
    """Return titles and settings that the filters leave.

    Raises:
        ConfigError: There is no such stage, or no such field.
    """
    groups: list[tuple[str, list[Setting]]] = [] if stage_id is not None else [("pipeline", pipeline_settings(resolved))]
    for stage in resolved.stages:
        if stage_id in {None, stage.stage_id}:
            title = f"stage {stage.name}, {stage.topology.execution_type}, {stage.architecture or 'the checkpoint'}"
            groups.append((title, stage_settings(stage, resolved)))
    if not groups:
        listed = ", ".join(stage.name for stage in resolved.stages)
        raise ConfigError(f"there is no stage {stage_id}", where="--stage", hint=f"the stages are {listed}")
    if field is None:
        return list(groups)
    found = [(title, [setting for setting in settings if setting.matches(field)]) for title, settings in groups]
    if not any(settings for _, settings in found):
        names = {setting.field for _, settings in groups for setting in settings}
        raise ConfigError(f"nothing sets {field!r} here", where="--field", hint=way_out(field, names, "fields"))
    return [(title, settings) for title, settings in found if settings]
