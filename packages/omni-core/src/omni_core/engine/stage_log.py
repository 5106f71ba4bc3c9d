"""A stage's log: the file that its processes write to, and the follower that passes its lines on to the server's stderr."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from pathlib import Path

STAGE_LOG_ENV = "OMNI_STAGE_LOG"
MAX_LOG_BYTES = 8 << 20
"""A log file that grows longer is emptied; its lines have gone to stderr by then."""

_TAIL_LINES = 40
_POLL_S = 0.2


def write_to_stage_log() -> None:
    """Send this process's stdout and stderr to the file that OMNI_STAGE_LOG names; nothing if it names none.

    Every process of a stage may do so, also those that others fork: the file is opened for appending.
    """
    if not (path := os.environ.get(STAGE_LOG_ENV)):
        return
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


class StageLog:
    """Read a stage's log file as it grows.

    A file and not a pipe, so that a server that is busy or gone never holds a stage up.

    Args:
        path: The file.
        name: What lines begin with that do not say whose they are.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._name = name
        self._at = 0
        self._rest = b""

    async def follow(self) -> None:
        """Pass lines on until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            self.read()

    def read(self) -> None:
        """Pass on what has been written since the last time."""
        try:
            with Path(self.path).open("rb") as file:
                file.seek(self._at)
                new = file.read()
                self._at = file.tell()
        except FileNotFoundError:
            return
        if self._at > MAX_LOG_BYTES:
            # The stage appends, so it goes on at the file's new end.
            os.truncate(self.path, 0)
            self._at = 0
        *lines, self._rest = (self._rest + new).split(b"\n")
        for raw in lines:
            line = raw.decode(errors="replace").rstrip("\r")
            self.tail.append(line)
            # Our own records carry the name already, as text or as JSON.
            named = line.startswith((f"({self._name} ", "{"))
            sys.stderr.write(f"{line}\n" if named else f"{self._name} | {line}\n")
