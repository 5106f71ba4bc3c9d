"""`omni config`: read a deployment before anything starts. Each action is a module with `configure` and `run`."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

_ACTIONS = ("show", "explain", "lint", "diff", "freeze", "memory", "schema")


class _Action(Protocol):
    HELP: str
    DESCRIPTION: str

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class ConfigCommand:
    """Show, explain, check, compare, freeze and size a deployment; nothing is started."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the actions with their arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for name in _ACTIONS:
            action = _load(name)
            action.configure(actions.add_parser(name, help=action.HELP, description=action.DESCRIPTION))

    def run(self, args: argparse.Namespace) -> int:
        """Run the action."""
        return _load(args.action).run(args)


def _load(name: str) -> _Action:
    return cast("_Action", importlib.import_module(f"{__name__}.{name}"))


command = ConfigCommand()
