"""The folder where connectors of one host meet if the stages of a pipeline were started by several commands (`--stage-id`).

Every command that takes part holds a shared lock on the folder. Whoever leaves last removes it, and what a killed one has left
is removed when the next one comes. The folder's name tells the group: the head chooses it and tells its workers.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from omni_core.engine.run_dir import hold_folder, lock, parent_folder, remove_unheld

_HEAD = "head.lock"


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
        path = parent_folder() / f"{_prefix()}{group}"
        return cls(str(path), group, address, (hold_folder(path),))

    @classmethod
    def found(cls, group: str, address: str) -> Meeting:
        """Take part as the head: in `group`, or in a group of another name where a head has that one.

        A head that is started again with the same `group` comes back to the folder of its workers.
        """
        while True:
            meeting = cls.enter(group, address)
            head = os.open(os.path.join(meeting.path, _HEAD), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if lock(head, fcntl.LOCK_EX):
                return cls(meeting.path, group, address, (*meeting._locks, head))
            os.close(head)
            meeting.leave()
            group = secrets.token_hex(8)

    def leave(self) -> None:
        """Leave the group; the last one removes the folder. Called once."""
        for descriptor in self._locks:
            os.close(descriptor)
        remove_unheld(Path(self.path))


def remove_left(run_dir: str, meeting: str) -> None:
    """Remove what a killed command leaves: its run directory, and the folder where connectors met if nobody else uses it."""
    shutil.rmtree(run_dir, ignore_errors=True)
    if meeting != run_dir:
        remove_unheld(Path(meeting))


def host_mark() -> str:
    """Return a text that is equal for two processes which can meet in a folder: one machine, one user, one `/tmp`.

    Containers on one machine differ unless they share the folder for temporary files; network namespaces do not matter.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    facts = parent_folder().stat()
    return f"{boot}:{os.geteuid()}:{facts.st_dev}:{facts.st_ino}"


def _sweep() -> None:
    for path in parent_folder().glob(f"{_prefix()}*"):
        remove_unheld(path)


def _prefix() -> str:
    return f"omni-meet-{os.geteuid()}-"
