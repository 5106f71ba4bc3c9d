"""Commands of the `omni` program: the record that plugins offer, and core's own commands, one module each."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class CommandEntry:
    """One command that a plugin offers (hook `omni_commands`)."""

    name: str
    """What the user types after `omni`."""
    summary: str
    """One line for `omni --help`."""
    target: str
    """Target of a `Command`; loaded when the command is used or its help is asked for."""


class Command(Protocol):
    """What the target of a CommandEntry is: a module or an object with these two functions."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit code.

        Raises:
            OmniError: Printed as `error: ...` with its hint, and turned into its exit code.
        """
        ...
