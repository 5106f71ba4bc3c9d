"""The run directory: a private folder with the sockets and logs of one server run, and its removal by whoever is left."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from omni_core.engine.watch import Watched


@dataclass(frozen=True)
class RunDir:
    """One server run's folder (mode 0700). Its name says whose it is, so that what a killed server leaves can be told."""

    path: str
    run_id: str
    server: Watched

    @classmethod
    def create(cls) -> RunDir:
        """Create the folder of a run of this process."""
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


def make_private_dir(server: Watched, name: str) -> str:
    """Create a folder that `remove_run_dirs` finds when the server is gone, and return its path."""
    path = parent_folder() / f"{_prefix(server)}{name}"
    path.mkdir(mode=0o700, exist_ok=True)
    return str(path)


def remove_run_dirs(server: Watched) -> None:
    """Remove every run directory of a server that is gone."""
    for path in parent_folder().glob(f"{_prefix(server)}*"):
        shutil.rmtree(path, ignore_errors=True)


def parent_folder() -> Path:
    """Return the folder for temporary files, one with a path short enough for sockets below it."""
    # The kernel takes 107 bytes for a socket's path. The run directory's name needs up to 34, vLLM's names of sockets 36.
    folder = tempfile.gettempdir()
    return Path(folder if len(os.fsencode(folder)) <= 35 else "/tmp")


def _prefix(server: Watched) -> str:
    return f"omni-{server.pid}-{server.start}-"
