"""`omni env`: the environment variables that Omni reads."""

from __future__ import annotations

import argparse

from omni_core import envs
from omni_core.commands.output import write, write_json, write_table


class EnvCommand:
    """List environment variables with their values."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--json", action="store_true", help="Write JSON.")

    def run(self, args: argparse.Namespace) -> int:
        """Write the list."""
        variables = [variable for variable in envs.VARIABLES.values() if not variable.internal]
        unknown = envs.unknown_variables()
        if args.json:
            write_json(
                {
                    "variables": [
                        {
                            "name": variable.name,
                            "value": envs.shown(variable.name),
                            "default": variable.default,
                            "summary": variable.summary,
                        }
                        for variable in variables
                    ],
                    "honoured": {name: envs.shown(name) for name in envs.HONOURED},
                    "unknown": [name for name, _ in unknown],
                }
            )
            return 0
        write_table([[variable.name, _value(variable), variable.summary] for variable in variables])
        write()
        write_table([[name, envs.shown(name) or "-", "of others, honoured as it is"] for name in envs.HONOURED])
        for name, suggestion in unknown:
            write(f"\n{name} is set, but nothing reads it. {suggestion}".rstrip())
        return 0


def _value(variable: envs.Variable) -> str:
    value = envs.shown(variable.name)
    return value if value is not None else f"({variable.default or 'not set'})"


command = EnvCommand()
