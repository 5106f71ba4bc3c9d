"""The command `omni talk`: speak to a server's realtime session, and hear and read what it says."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from omni_core import envs
from omni_core.errors import ConfigError

if TYPE_CHECKING:
    from omni_server.talk.client import Options

FILE_TIMEOUT_S = 120.0


class TalkCommand:
    """Hold one conversation."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        add = parser.add_argument
        add("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
        add("--model", metavar="NAME", help="the model, by a name that the server gives it")
        add("--input", type=Path, metavar="FILE", help="say what is in this audio file; by default the microphone is heard")
        add("--output", type=Path, metavar="FILE.wav", help="write the answers to this file; by default the speaker plays them")
        add("--instructions", metavar="TEXT", help="what the model is told to do")
        add("--voice", metavar="NAME", help="the voice of the answers")
        add("--fast", action="store_true", help="send the file as fast as the server takes it, not as fast as it plays")
        add("--wait", type=_seconds, default=3.0, metavar="S", help=_WAIT)
        add("--timeout", type=_seconds, metavar="S", help=_TIMEOUT)
        add("--quiet", action="store_true", help="show no level meter")
        add("--api-key", metavar="KEY", help="the server's key; by default the value of OMNI_API_KEY")

    def run(self, args: argparse.Namespace) -> int:
        """Talk until the file is answered, or until Ctrl-C.

        Raises:
            OmniError: A flag or a file cannot be used, a device is missing, or the server refuses or fails.
        """
        from omni_server.talk.client import Options

        if args.output is not None and args.output.suffix.lower() != ".wav":
            raise ConfigError(f"{args.output} does not end with .wav", where="--output", hint="answers are written as WAV")
        timeout_s = args.timeout or (FILE_TIMEOUT_S if args.input else None)
        options = Options(
            url=args.url,
            api_key=args.api_key or envs.read("OMNI_API_KEY"),
            model=args.model,
            instructions=args.instructions,
            voice=args.voice,
            wait_s=args.wait,
            timeout_s=timeout_s,
        )
        try:
            asyncio.run(_talk(args, options))
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            return 130 if args.input else 0
        return 0


async def _talk(args: argparse.Namespace, options: Options) -> None:
    from omni_server.talk.client import hold
    from omni_server.talk.devices import Microphone, Speaker
    from omni_server.talk.files import FileSink, FileSource
    from omni_server.talk.screen import Screen

    source = Microphone() if args.input is None else FileSource(args.input, is_paced=not args.fast)
    sink = Speaker() if args.output is None else FileSink(args.output)
    with source, sink:
        await hold(options, source, sink, Screen(shows_meter=not args.quiet and sys.stderr.isatty()))


_WAIT = "end after so many seconds in which a model that decides by itself when it speaks said nothing (default %(default)s)"
_TIMEOUT = f"give up after so many seconds (default {FILE_TIMEOUT_S:g} with --input, else never)"


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


command = TalkCommand()
