"""The folder where connectors of one host meet if the stages of a pipeline were started by several commands (`--stage-id`).

Every command that takes part holds a shared lock on the folder. Whoever leaves last removes it, and what a killed one has left
is removed when the next one comes. The folder's name tells the group: the head chooses it and tells its workers.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from omni_core.engine.run_dir import parent_folder
from omni_core.errors import ConfigError

_HEAD = "head.lock"
_TRIES = 100
_PAUSE_S = 0.01


@dataclass(frozen=True)
class Meeting:
    """One process's place in a group."""

    path: str
    group: str
    address: str
    """Where other hosts reach this process."""
    _locks: tuple[int, ...] = ()

    @classmethod
    def enter(cls, group: str, address: str) -> Meeting:
        """Take part in a group, whose folder is made if nobody of this host has made it.

        Raises:
            ConfigError: The folder belongs to another user.
        """
        _sweep()
        path, lock = _open_folder(group)
        return cls(path, group, address, (lock,))

    @classmethod
    def found(cls, group: str, address: str) -> Meeting:
        """Take part as the head: in `group`, or in a group of another name where a head has that one.

        A head that is started again with the same `group` comes back to the folder of its workers.
        """
        while True:
            meeting = cls.enter(group, address)
            lock = os.open(os.path.join(meeting.path, _HEAD), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if _lock(lock, fcntl.LOCK_EX):
                return cls(meeting.path, group, address, (*meeting._locks, lock))
            os.close(lock)
            meeting.leave()
            group = secrets.token_hex(8)

    def leave(self) -> None:
        """Leave the group; the last one removes the folder. Called once."""
        for lock in self._locks:
            os.close(lock)
        _remove_unused(Path(self.path))


def remove_left(run_dir: str, meeting: str) -> None:
    """Remove what a killed command leaves: its run directory, and the folder where connectors met if nobody else uses it."""
    shutil.rmtree(run_dir, ignore_errors=True)
    if meeting != run_dir:
        _remove_unused(Path(meeting))


def host_mark() -> str:
    """Return a text that is equal for two processes which can meet in a folder: one machine, one user, one `/tmp`.

    Containers on one machine differ unless they share the folder for temporary files; network namespaces do not matter.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    facts = parent_folder().stat()
    return f"{boot}:{os.geteuid()}:{facts.st_dev}:{facts.st_ino}"


def _open_folder(group: str) -> tuple[str, int]:
    path = parent_folder() / f"{_prefix()}{group}"
    for _ in range(_TRIES):
        path.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # removed by one who left just now
        except OSError as error:
            raise ConfigError(f"the folder cannot be opened: {error.strerror}", where=str(path), hint="remove it") from error
        facts = os.fstat(lock)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            os.close(lock)
            raise ConfigError("the folder is open to other users", where=str(path), hint="remove it, or set TMPDIR")
        if _lock(lock, fcntl.LOCK_SH) and _is_at(path, facts):
            return str(path), lock
        os.close(lock)
        time.sleep(_PAUSE_S)  # whoever looks whether the folder is in use holds it for a moment
    raise ConfigError(f"the folder was removed {_TRIES} times while it was made", where=str(path), hint="see who does that")


def _is_at(path: Path, facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), facts)
    except FileNotFoundError:
        return False


def _sweep() -> None:
    for path in parent_folder().glob(f"{_prefix()}*"):
        _remove_unused(path)


def _remove_unused(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # removed by another, or not ours to touch
    try:
        if os.fstat(lock).st_uid == os.geteuid() and _lock(lock, fcntl.LOCK_EX):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _prefix() -> str:
    return f"omni-meet-{os.geteuid()}-"
