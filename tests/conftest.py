"""Fixtures of the workspace tests: tiny checkpoints, and what a server run leaves on the machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

SHM = Path("/dev/shm")
POLL_S = 0.05


@dataclass(frozen=True)
class Traces:
    """What a program started with `env` has on this machine: its processes, their shared memory, their temporary files."""

    temporary: Path
    """The program's own folder for temporary files."""
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    shm_before: frozenset[str] = field(default_factory=lambda: frozenset(_inodes()))

    @property
    def env(self) -> dict[str, str]:
        """Variables that every descendant inherits, whoever its parent is by then."""
        return {"WORKSPACE_TEST_TAG": self.tag, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)}

    def processes(self) -> list[psutil.Process]:
        """Return the program and its descendants, zombies apart."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("WORKSPACE_TEST_TAG") == self.tag and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def shared_memory(self) -> set[str]:
        """Return files of /dev/shm that are new and that no other program uses."""
        new = {name: inode for name, inode in _inodes().items() if name not in self.shm_before}
        others = _shm_of_others(self.tag) if new else set()
        return {name for name, inode in new.items() if inode not in others}

    def files(self) -> set[str]:
        """Return the program's temporary files; torch keeps its cache of compiled code for the next start."""
        return {path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")}

    def wait_until_gone(self, timeout_s: float = 10.0) -> None:
        """Wait until nothing is left; fail after `timeout_s` seconds with what is."""
        deadline = time.monotonic() + timeout_s
        while left := [*self.processes(), *self.shared_memory(), *self.files()]:
            if time.monotonic() > deadline:
                pytest.fail(f"left after {timeout_s} s: {left}")
            time.sleep(POLL_S)


def _shm_of_others(tag: str) -> set[int]:
    """Return the inodes of shared memory that programs without the tag have mapped; a semaphore's mapping has another name."""
    inodes: set[int] = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get("WORKSPACE_TEST_TAG") == tag:
                continue
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
            continue
        inodes |= {int(line.split()[4]) for line in maps.splitlines() if f"{SHM}/" in line}
    return inodes


def _inodes() -> dict[str, int]:
    found = {}
    for path in SHM.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_ino
    return found


@pytest.fixture
def traces() -> Iterator[Traces]:
    """What is left of the program that the test starts with `traces.env`."""
    with _own_folder() as folder:
        yield Traces(folder)


@pytest.fixture(scope="module")
def module_traces() -> Iterator[Traces]:
    """The same for a program that all tests of a module use."""
    with _own_folder() as folder:
        yield Traces(folder)


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    # Not pytest's own folder: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a tiny Qwen3-TTS checkpoint of a variant, once."""
    built: dict[str, Path] = {}

    def build(variant: str = "custom_voice") -> Path:
        if variant not in built:
            folder = tmp_path_factory.mktemp("tiny") / variant
            command = [sys.executable, "-m", "omni_core", "tiny", "qwen3_tts", str(folder), "--variant", variant]
            subprocess.run(command, check=True, timeout=240)
            built[variant] = folder
        return built[variant]

    return build
