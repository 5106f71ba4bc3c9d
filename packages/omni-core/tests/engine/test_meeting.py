"""The folder where connectors of one host meet: made by the first who comes, removed by the last who leaves."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_core.engine import meeting as meeting_module
from omni_core.engine import run_dir
from omni_core.engine.meeting import Meeting, host_mark, remove_left
from omni_core.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(short_tmp: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(meeting_module, "parent_folder", lambda: Path(short_tmp))
    yield Path(short_tmp)
    assert list(Path(short_tmp).iterdir()) == []


def test_last_one_removes_the_folder() -> None:
    first, second = Meeting.enter("g", "a"), Meeting.enter("g", "b")

    assert first.path == second.path
    assert stat.S_IMODE(os.stat(first.path).st_mode) == 0o700
    first.leave()
    assert Path(second.path).is_dir()
    second.leave()
    assert not Path(second.path).exists()


def test_head_gets_its_group_back_and_a_second_head_another_one() -> None:
    worker = Meeting.enter("g", "w")
    head = Meeting.found("g", "h")

    other = Meeting.found("g", "o")
    assert head.group == "g"
    assert other.group != "g"
    other.leave()
    head.leave()
    again = Meeting.found("g", "h")
    assert again.path == worker.path
    again.leave()
    worker.leave()


def test_what_a_killed_command_leaves_is_removed_by_the_next(folder: Path) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from omni_core.engine import meeting\n"
        f"meeting.parent_folder = lambda: pathlib.Path({str(folder)!r})\n"
        "found = meeting.Meeting.enter('killed', 'a')\n"
        "pathlib.Path(found.path, 'shm-0-1-0.sock').touch()\n"
        "print(found.path, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        path = Path(victim.stdout.readline().strip())
        kept = Meeting.enter("other", "b")
        assert path.is_dir()  # its owner lives
        victim.send_signal(signal.SIGKILL)
        victim.wait(10)

        Meeting.enter("third", "c").leave()

    assert not path.exists()
    assert Path(kept.path).is_dir()
    kept.leave()


def test_what_is_left_is_removed_unless_somebody_uses_it(folder: Path) -> None:
    run_dir = folder / "run"
    run_dir.mkdir()
    used = Meeting.enter("g", "a")

    remove_left(str(run_dir), used.path)

    assert not run_dir.exists()
    assert Path(used.path).is_dir()
    used.leave()


def test_folder_that_somebody_looks_at_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command looks through all folders at its start: on a busy machine for longer than a hundred tries take."""
    path = folder / f"omni-meet-{os.geteuid()}-g"
    path.mkdir(mode=0o700)
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 50:
            os.close(lock)

    monkeypatch.setattr(run_dir.time, "sleep", pause)

    Meeting.enter("g", "a").leave()

    assert sum(pauses) >= 0.5
    assert not path.exists()


def test_folder_that_others_can_read_is_refused(folder: Path) -> None:
    path = folder / f"omni-meet-{os.geteuid()}-g"
    path.mkdir()
    path.chmod(0o755)
    # Somebody holds it, so that it is not swept away.
    holder = os.open(path, os.O_RDONLY)
    meeting_module.fcntl.flock(holder, meeting_module.fcntl.LOCK_SH)

    with pytest.raises(ConfigError, match="open to other users"):
        Meeting.enter("g", "a")

    os.close(holder)
    path.rmdir()


def test_host_mark_tells_hosts_apart_by_their_temporary_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = host_mark()
    (folder / "mounted").mkdir()
    monkeypatch.setattr(meeting_module, "parent_folder", lambda: folder / "mounted")

    assert host_mark() != here
    (folder / "mounted").rmdir()
