"""`omni plugins`: what became of each installed plugin."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from omni_core.commands.output import write, write_json, write_table
from omni_core.errors import ConfigError
from omni_core.plugins import PluginManager, PluginReport, plugin_manager
from omni_core.suggest import way_out


class PluginsCommand:
    """List plugins, their state and their hooks."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--json", action="store_true", help="Write JSON.")
        parser.add_argument("--hook", metavar="NAME", help="List only plugins with this hook.")
        parser.add_argument(
            "--strict",
            action="store_true",
            help="Call every hook that takes no argument; exit with 1 if a plugin cannot be used.",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Write the list; with --strict return 1 if a plugin is broken or incompatible."""
        manager = plugin_manager()
        if args.hook is not None and args.hook not in manager.hook_names:
            raise ConfigError(f"there is no hook {args.hook!r}", hint=way_out(args.hook, manager.hook_names, "hooks"))
        if args.strict:
            call_plain_hooks(manager)
        reports = [report for report in manager.reports if args.hook is None or args.hook in report.hooks]
        if args.json:
            write_json([asdict(report) for report in reports])
        elif reports:
            write_table([_row(report) for report in reports])
        else:
            write("no plugin has this hook")
        failed = any(report.status in {"broken", "incompatible"} for report in reports)
        return 1 if args.strict and failed else 0


def call_plain_hooks(manager: PluginManager) -> None:
    """Call every declared hook that takes no argument, so that a plugin which fails in one is known to be broken."""
    for name in manager.hook_names:
        spec = getattr(manager.hook, name).spec
        if spec is not None and not spec.argnames:
            manager.collect(name)


def _row(report: PluginReport) -> list[str]:
    return [report.name, report.version, report.status, report.reason or " ".join(report.hooks)]


command = PluginsCommand()
