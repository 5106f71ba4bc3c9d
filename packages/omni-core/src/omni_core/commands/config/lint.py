"""`omni config lint`: everything about a deployment that can be checked without a GPU."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from omni_core.commands.config.arguments import add_json, add_platform, read_model
from omni_core.commands.output import write, write_json
from omni_core.deploy.flags import add_deploy_flags, typed_flags
from omni_core.deploy.lint import Finding, as_finding, lint_deployment
from omni_core.deploy.stand_in import is_deploy_file, stand_in
from omni_core.errors import ConfigError, OmniError
from omni_core.plugins import PluginManager, plugin_manager

HELP = "Check a model's deployment, or deploy files, without a GPU."
DESCRIPTION = (
    "Check a model with its flags, or each deploy file by itself for the pipeline that it is for. Exits with 2 if something "
    "stops a start, and with --strict with 1 if there is anything else."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("targets", metavar="MODEL|FILE", nargs="+", help="One model, or deploy files by path or bundled name.")
    parser.add_argument("--strict", action="store_true", help="Exit with 1 if there are warnings.")
    add_json(parser)
    add_platform(parser)
    add_deploy_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Write the findings; return 2 for errors, 1 for warnings with --strict, else 0."""
    manager = plugin_manager()
    are_files = [is_deploy_file(target, manager) for target in args.targets]
    if all(are_files):
        found = {target: _lint_file(target, args, manager) for target in args.targets}
    elif len(args.targets) == 1:
        found = {args.targets[0]: _lint_model(args.targets[0], args, manager)}
    else:
        raise ConfigError("only one model can be checked at a time", hint="name one model, or deploy files alone")
    findings = [finding for group in found.values() for finding in group]
    if args.json:
        write_json({target: [asdict(finding) for finding in group] for target, group in found.items()})
    else:
        _write(found)
    if any(finding.level == "error" for finding in findings):
        return 2
    return 1 if args.strict and findings else 0


def _lint_model(model: str, args: argparse.Namespace, manager: PluginManager) -> list[Finding]:
    flags = typed_flags(args)
    info = read_model(model, flags)
    names = flags.pop("deploy_config", [])
    overrides = flags.pop("stage_overrides", None)
    return lint_deployment(info, manager, deploy_config=names, flags=flags, stage_overrides=overrides, platform=args.platform)


def _lint_file(name: str, args: argparse.Namespace, manager: PluginManager) -> list[Finding]:
    flags = typed_flags(args)
    flags.pop("revision", None)
    names = [*flags.pop("deploy_config", []), name]
    overrides = flags.pop("stage_overrides", None)
    try:
        info = stand_in(names, manager)
    except OmniError as error:
        return [as_finding(error)]
    return lint_deployment(info, manager, deploy_config=names, flags=flags, stage_overrides=overrides, platform=args.platform)


def _write(found: dict[str, list[Finding]]) -> None:
    for target, findings in found.items():
        if not findings:
            write(f"{target}: nothing is wrong")
        for finding in findings:
            place = f"{finding.where or target}: "
            write(f"{place}{finding.level}: {finding.text}" + (f"\n  way out: {finding.hint}" if finding.hint else ""))
