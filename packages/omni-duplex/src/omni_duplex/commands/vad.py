"""The command `omni vad`: fetches the weights of the speech detector that turn detection needs."""

from __future__ import annotations

import argparse
import sys

from omni_core.errors import DependencyError
from omni_duplex.vad.weights import VERSION, fetch_weights, find_weights


class VadCommand:
    """Fetch the weights of Silero VAD, or say where they are."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--check", action="store_true", help="only say where the weights are; exit code 3 if nowhere")

    def run(self, args: argparse.Namespace) -> int:
        """Print the file of weights, after fetching it if it is not there.

        Raises:
            DependencyError: It is not there and cannot be fetched.
        """
        try:
            found = find_weights()
        except DependencyError:
            if args.check:
                raise
            sys.stderr.write(f"fetching the weights of Silero VAD {VERSION} with pip\n")
            found = fetch_weights()
        sys.stdout.write(f"{found}\n")
        return 0


command = VadCommand()
