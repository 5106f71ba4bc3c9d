"""`omni echo-info MODEL`: say what an echo checkpoint accepts."""

from __future__ import annotations

import argparse

from omni_core.model_info import read_model_info
from omni_plugin_echo.speech import EchoSpeech


class EchoInfo:
    """Print the traits of a checkpoint."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("model", help="Folder of an echo checkpoint.")

    def run(self, args: argparse.Namespace) -> int:
        """Print the traits and return the exit code.

        Raises:
            ConfigError: The folder holds no echo checkpoint.
        """
        traits = EchoSpeech(read_model_info(args.model)).traits
        print(f"sample rate: {traits.sample_rate} Hz")
        print(f"one character: {1000 * traits.samples_per_frame / traits.sample_rate:g} ms")
        print(f"voices: {', '.join(traits.voices)}")
        return 0


command = EchoInfo()
