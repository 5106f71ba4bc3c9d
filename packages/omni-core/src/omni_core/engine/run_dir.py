"""The run directory: a private folder with the sockets and logs of one server run, and its removal by whoever is left.

Whoever uses a folder holds a lock on it. Where all that did were killed at once, the next server removes what they left.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from omni_core.engine.watch import Watched, start_time
from omni_core.errors import ConfigError

_TRIES = 100
_PAUSE_S = 0.01
_NAME = re.compile(r"omni-([0-9]+)-([0-9]+)-\w+")
_held: dict[str, int] = {}
"""Locks of this process by folder; they end with it."""


@dataclass(frozen=True)
class RunDir:
    """One server run's folder (mode 0700). Its name says whose it is, so that what a killed server leaves can be told."""

    path: str
    run_id: str
    server: Watched

    @classmethod
    def create(cls) -> RunDir:
        """Create the folder of a run of this process, and remove those of servers that are gone."""
        remove_abandoned()
        run_id = secrets.token_hex(4)
        server = Watched.of(os.getpid())
        return cls(make_private_dir(server, run_id), run_id, server)

    def socket(self, name: str) -> str:
        """Return the path of a socket."""
        return f"{self.path}/{name}.sock"

    def log(self, name: str) -> str:
        """Return the path of a log file."""
        return f"{self.path}/{name}.log"

    def remove(self) -> None:
        """Remove the folder and what is in it; a second time does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if (lock := _held.pop(self.path, None)) is not None:
            os.close(lock)


def make_private_dir(server: Watched, name: str) -> str:
    """Create a folder that `remove_run_dirs` finds when the server is gone, and return its path."""
    path = str(parent_folder() / f"{_prefix(server)}{name}")
    if path not in _held:
        _held[path] = hold_folder(Path(path))
    return path


def remove_run_dirs(server: Watched) -> None:
    """Remove every run directory of a server that is gone."""
    for path in parent_folder().glob(f"{_prefix(server)}*"):
        shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove every run directory whose server is gone and that nobody holds.

    Both must be so: a server in another container has a number that is free here, and holds its folder.
    """
    for path in parent_folder().glob("omni-*"):
        if (match := _NAME.fullmatch(path.name)) and start_time(int(match[1])) != int(match[2]):
            remove_unheld(path)


def hold_folder(path: Path) -> int:
    """Make a private folder unless it is there, and return a descriptor with a shared lock on it.

    Raises:
        ConfigError: The folder belongs to another user.
    """
    for _ in range(_TRIES):
        path.mkdir(mode=0o700, exist_ok=True)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # removed by one who left just now
        except OSError as error:
            raise ConfigError(f"the folder cannot be opened: {error.strerror}", where=str(path), hint="remove it") from error
        facts = os.fstat(folder)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            os.close(folder)
            raise ConfigError("the folder is open to other users", where=str(path), hint="remove it, or set TMPDIR")
        try:
            held = lock(folder, fcntl.LOCK_SH)
        except OSError:  # a file system without locks, where nobody removes what others left
            return folder
        if held and _is_at(path, facts):
            return folder
        os.close(folder)
        time.sleep(_PAUSE_S)  # whoever looks whether the folder is in use holds it for a moment
    raise ConfigError(f"the folder was removed {_TRIES} times while it was made", where=str(path), hint="see who does that")


def remove_unheld(path: Path) -> None:
    """Remove a folder of this user on which nobody has a lock."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # removed by another, or not ours to touch
    try:
        if os.fstat(folder).st_uid == os.geteuid() and lock(folder, fcntl.LOCK_EX):
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return  # a file system without locks: who knows whether it is in use
    finally:
        os.close(folder)


def lock(descriptor: int, kind: int) -> bool:
    """Take a lock of a kind (`fcntl.LOCK_*`) and return whether that was possible at once.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def parent_folder() -> Path:
    """Return the folder for temporary files, one with a path short enough for sockets below it."""
    # The kernel takes 107 bytes for a socket's path. The run directory's name needs up to 34, vLLM's names of sockets 36.
    folder = tempfile.gettempdir()
    return Path(folder if len(os.fsencode(folder)) <= 35 else "/tmp")


def _prefix(server: Watched) -> str:
    return f"omni-{server.pid}-{server.start}-"


def _is_at(path: Path, facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), facts)
    except FileNotFoundError:
        return False
