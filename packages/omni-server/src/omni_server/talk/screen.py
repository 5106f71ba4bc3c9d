"""What is seen of a conversation: its words, line by line on stdout, and how loud both sides are on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from omni_server.talk.sound import level

WIDTH = 20
_PERIOD_S = 0.1
_FLOOR_DB = -60.0


class Screen:
    """Show a conversation.

    Args:
        shows_meter: Whether the last line of the terminal shows levels.
        clock: Seconds.
    """

    def __init__(self, *, shows_meter: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._shows_meter = shows_meter
        self._clock = clock
        self._levels = {"you": -90.0, "model": -90.0}
        self._drawn = -1.0

    def say(self, who: str, text: str) -> None:
        """Write a line of the conversation."""
        self._wipe()
        sys.stdout.write(f"{who}: {text.strip()}\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Write a line about the conversation."""
        self._wipe()
        sys.stderr.write(f"{text}\n")

    def hear(self, who: str, pcm: bytes) -> None:
        """Show how loud one side is, ten times a second at most."""
        if not self._shows_meter:
            return
        self._levels[who] = level(pcm)
        now = self._clock()
        if now - self._drawn >= _PERIOD_S:
            self._drawn = now
            sys.stderr.write("\r" + "  ".join(f"{name} {bar(value)}" for name, value in self._levels.items()))
            sys.stderr.flush()
            self._levels["model"] = -90.0  # nothing says that it fell silent

    def _wipe(self) -> None:
        if self._shows_meter:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def bar(level_db: float) -> str:
    """Return a level as a bar of WIDTH characters, from 60 dB below full scale on."""
    filled = round(WIDTH * (1 - max(_FLOOR_DB, min(0.0, level_db)) / _FLOOR_DB))
    return f"[{'#' * filled}{'-' * (WIDTH - filled)}]"
