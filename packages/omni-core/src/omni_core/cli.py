"""The `omni` program: finds the command, loads only what it needs, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from omni_core import __version__, envs
from omni_core.errors import ConfigError, OmniError
from omni_core.logs import setup_logging
from omni_core.suggest import did_you_mean
from omni_core.target import load_target

if TYPE_CHECKING:
    from omni_core.commands import Command, CommandEntry
    from omni_core.plugins import Offer, PluginManager

logger = logging.getLogger(__name__)

INTERRUPTED = 130
_BROUGHT_BY = {"serve": "omni-server", "bench": "omni-server"}
"""Commands of first-party packages, for messages where such a package is not installed."""


class CommandParser(argparse.ArgumentParser):
    """Take `--max_num_seqs` as `--max-num-seqs`, as vLLM does, and suggest a flag for a misspelt one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation that is accepted today changes its meaning with the next flag.
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments after writing flags with dashes."""
        return super().parse_known_args([_with_dashes(arg) for arg in (sys.argv[1:] if args is None else args)], namespace)

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong, and exit with 2."""
        unknown = message.removeprefix("unrecognized arguments: ").split("=")[0].split()
        if message.startswith("unrecognized") and unknown and unknown[0].startswith("--"):
            suggestion = did_you_mean(unknown[0], self._all_flags())
            message = f"there is no flag {' '.join(unknown)}" + (f"\nhint: {suggestion}" if suggestion else "")
        self.exit(2, f"error: {message}\n" if "hint:" in message else f"{self.format_usage()}error: {message}\n")

    def _all_flags(self) -> set[str]:
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found.update(flag for parser in action.choices.values() for flag in parser._option_string_actions)
        return found


def _with_dashes(arg: str) -> str:
    name, equals, value = arg.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else arg


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0, or what the error's class says (`errors.py`), 130 after an interrupt."""
    options = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in options
    try:
        return _run(options)
    except OmniError as error:
        _report(error, debug)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`omni pipelines | head`); what is left in the buffer has no reader either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # whatever a command raised beside our own errors is a fault of ours: say so in one line
        if debug:
            raise
        sys.stderr.write(f"error: {type(error).__name__}: {error}\nhint: this is a fault of Omni; --debug shows where\n")
        return 1


def _run(options: list[str]) -> int:
    parser = _top_parser()
    if not any(option in {"-V", "--version"} for option in options[:1]):
        _disable_plugins(options)
        setup_logging("omni")
        _warn_of_variables()
    args = parser.parse_args(options) if options and not _wants_help(options) else None
    if args is None or args.command is None:
        sys.stdout.write(_help(parser))
        return 0
    from omni_core.plugins import plugin_manager

    entry, arguments = _find(args.command, args.arguments, plugin_manager())
    command = cast("Command", load_target(entry.target, where=f"command {entry.name!r}"))
    command_parser = CommandParser(prog=f"omni {entry.name}", description=_sentence(entry.summary))
    command_parser.add_argument("--debug", action="store_true", help="Show where an error comes from.")
    command.configure(command_parser)
    return command.run(command_parser.parse_args(arguments))


def _top_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="omni",
        description="Serve omni-modality models.",
        usage="omni [--no-plugin NAME] [--debug] COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"omni {__version__}")
    parser.add_argument("--no-plugin", metavar="NAME", action="append", help="Leave out the plugin of this distribution.")
    parser.add_argument("--debug", action="store_true", help="Show where an error comes from.")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _wants_help(options: list[str]) -> bool:
    """Return whether help of the program itself is asked for, before any command."""
    position = 0
    while position < len(options) and options[position].startswith("-"):
        if options[position] in {"-h", "--help"}:
            return True
        position += 2 if options[position] == "--no-plugin" else 1
    return False


def _disable_plugins(options: list[str]) -> None:
    """Put `--no-plugin` into the environment, so that child processes leave out the same plugins."""
    names = [part for part in envs.read("OMNI_DISABLE_PLUGINS").split(",") if part]
    position = 0
    while position < len(options) and options[position].startswith("-"):
        name, _, value = options[position].partition("=")
        if name == "--no-plugin":
            position += 0 if value else 1
            names += [value] if value else options[position : position + 1]
        position += 1
    if names:
        os.environ["OMNI_DISABLE_PLUGINS"] = ",".join(dict.fromkeys(names))


def _warn_of_variables() -> None:
    for name, suggestion in envs.unknown_variables():
        if suggestion:
            logger.warning("nothing reads the environment variable %s (%s)", name, suggestion)


def _help(parser: argparse.ArgumentParser) -> str:
    from omni_core.plugins import plugin_manager

    offers = _commands(plugin_manager())
    width = max(len(name) for name in offers)
    lines = [f"  {name:{width}}  {offers[name][0].record.summary}" for name in sorted(offers)]
    commands = "\n".join(["commands:", *lines, "", "omni COMMAND --help says more about each."])
    return f"{parser.format_help()}\n{commands}\n"


def _commands(manager: PluginManager) -> dict[str, list[Offer[CommandEntry]]]:
    """Return all offers of each command: a clash stops that command alone, so that `omni plugins` can still show it."""
    from omni_core.plugins import Offer

    found: dict[str, list[Offer[CommandEntry]]] = {}
    for distribution, entries in manager.collect("omni_commands"):
        for entry in entries:
            found.setdefault(entry.name, []).append(Offer(distribution, entry))
    return found


def _find(name: str, arguments: list[str], manager: PluginManager) -> tuple[CommandEntry, list[str]]:
    """Return the command and the arguments behind its name, which may have two words (`bench connector`)."""
    from omni_core.plugins import clash

    commands = _commands(manager)
    if arguments and f"{name} {arguments[0]}" in commands:
        name, arguments = f"{name} {arguments[0]}", arguments[1:]
    offers = commands.get(name, [])
    if len(offers) > 1:
        raise clash("command", name, offers[0].distribution, offers[1].distribution)
    if offers:
        return offers[0].record, arguments
    hints = [did_you_mean(name, {*commands, *_BROUGHT_BY})]
    guess = name if name in _BROUGHT_BY else hints[0].removeprefix("did you mean '").removesuffix("'?")
    package = _BROUGHT_BY.get(guess) if guess not in commands else None
    if package is not None:
        report = next((report for report in manager.reports if report.name == package), None)
        hints = [f"{guess} is a command of {package}"]
        hints.append(f"pip install {package}" if report is None else f"which is {report.status}: {report.reason}")
    raise ConfigError(f"there is no command {name!r}", hint=": ".join(filter(None, hints)) or "omni --help lists them")


def _sentence(summary: str) -> str:
    return summary[:1].upper() + summary[1:].rstrip(".") + "."


def _report(error: OmniError, debug: bool) -> None:
    if debug:
        logger.error("where the error comes from", exc_info=error)
    place = f"{error.where}: " if error.where else ""
    sys.stderr.write(f"error: {place}{error.message}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")


if __name__ == "__main__":
    sys.exit(main())
