"""`omni config diff`: what differs between two deployments after everything is resolved."""

from __future__ import annotations

import argparse

from omni_core.commands.config.arguments import add_json, add_platform, read_model, resolve_file, resolve_model
from omni_core.commands.output import write, write_json, write_table
from omni_core.deploy.diff import Difference, compare
from omni_core.deploy.explain import Setting, show_value
from omni_core.deploy.flags import add_deploy_flags, typed_flags
from omni_core.errors import ConfigError
from omni_core.plugins import PluginManager, plugin_manager
from omni_core.stage import ResolvedPipeline

HELP = "Show what differs between two deployments."
DESCRIPTION = (
    "Compare two deploy files A and B, or with --against a deploy file with MODEL and its flags. Values are compared as they "
    "hold in the end, not as they are written. Exits with 1 if they differ."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.usage = "%(prog)s A B [--model MODEL] | %(prog)s MODEL --against FILE [flags of a deployment]"
    parser.add_argument("targets", metavar="A B", nargs="+", help="Two deploy files by path or bundled name, or one model.")
    parser.add_argument("--model", metavar="MODEL", help="Model for A and B; by default the pipeline that the files are for.")
    parser.add_argument("--against", metavar="FILE", help="Compare MODEL and its flags with what it is under this file alone.")
    add_json(parser)
    add_platform(parser)
    add_deploy_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Write the differences; return 1 if there are any."""
    manager = plugin_manager()
    left, right = _against(args, manager) if args.against is not None else _two_files(args, manager)
    differences = compare(left, right)
    if args.json:
        write_json(
            {
                "left": {"files": list(left.files), "config_hash": left.config_hash},
                "right": {"files": list(right.files), "config_hash": right.config_hash},
                "differences": [difference.as_plain() for difference in differences],
            }
        )
    else:
        _write(differences, left, right)
    return 1 if differences else 0


def _two_files(args: argparse.Namespace, manager: PluginManager) -> tuple[ResolvedPipeline, ResolvedPipeline]:
    flags = typed_flags(args)
    model = None if args.model is None else read_model(args.model, flags)
    if len(args.targets) != 2:
        raise ConfigError(f"two deploy files are compared, not {len(args.targets)}", hint="name A and B, or use --against")
    if flags:
        name = "--" + next(iter(flags)).replace("_", "-")
        raise ConfigError(f"{name} goes with --against", where=name, hint="omni config diff MODEL --against FILE [flags]")
    left, right = (resolve_file(name, manager, model=model, platform=args.platform) for name in args.targets)
    return left, right


def _against(args: argparse.Namespace, manager: PluginManager) -> tuple[ResolvedPipeline, ResolvedPipeline]:
    if len(args.targets) != 1 or args.model is not None:
        raise ConfigError("--against compares with one model", where="--against", hint="omni config diff MODEL --against FILE")
    model, right = resolve_model(args.targets[0], args, manager)
    return resolve_file(args.against, manager, model=model, platform=args.platform), right


def _write(differences: list[Difference], left: ResolvedPipeline, right: ResolvedPipeline) -> None:
    for sign, side in (("-", left), ("+", right)):
        write(f"{sign * 3} {', '.join(side.files) or 'no deploy file'}, config hash {side.config_hash}")
    rows: list[list[str]] = []
    for difference in differences:
        name = difference.field if difference.stage is None else f"stage {difference.stage} {difference.field}"
        rows.append([f"- {name}", *_cells(difference.left)])
        rows.append([f"+ {name}", *_cells(difference.right)])
    write_table(rows)


def _cells(setting: Setting | None) -> list[str]:
    return ["-", "not set"] if setting is None else [show_value(setting.value), setting.where]
