"""The command `omni bench`: one sub-command for each thing that can be measured."""

from __future__ import annotations

import argparse

from omni_core.commands import Command
from omni_server.bench.serve_command import ServeBench

SUB_COMMANDS: tuple[tuple[str, str, Command], ...] = (("serve", "Put load on one or two servers over HTTP.", ServeBench()),)
"""Name, help and command of each."""


class BenchCommand:
    """Hand over to a sub-command."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the sub-commands, each with its own arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for name, text, command in SUB_COMMANDS:
            sub_parser = actions.add_parser(name, help=text, description=text)
            command.configure(sub_parser)
            sub_parser.set_defaults(sub_command=command)

    def run(self, args: argparse.Namespace) -> int:
        """Run the sub-command."""
        command: Command = args.sub_command
        return command.run(args)


command = BenchCommand()
