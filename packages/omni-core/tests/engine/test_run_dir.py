"""Run directories: private, named after their server, and removed by the next one if nobody is left to do it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from omni_core.engine.run_dir import RunDir, hold_folder, lock, remove_run_dirs, remove_unheld
from omni_core.engine.watch import start_time
from omni_core.errors import ConfigError


@pytest.fixture
def folder(short_tmp: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where run directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", short_tmp)
    return Path(short_tmp)


def gone() -> str:
    """Return how the folders of a server begin that is gone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return f"omni-{process.pid}-{start_time(process.pid)}-"


def test_run_directory_is_private_and_named_after_its_server() -> None:
    run_dir = RunDir.create()

    assert os.stat(run_dir.path).st_mode & 0o777 == 0o700
    Path(run_dir.log("stage0")).write_text("line")
    run_dir.remove()
    run_dir.remove()
    assert not Path(run_dir.path).exists()


def test_only_the_run_directories_of_the_given_server_are_removed(folder: Path) -> None:
    mine = RunDir.create()
    other = folder / "omni-1-1-abcd"
    other.mkdir()

    remove_run_dirs(mine.server)

    assert not Path(mine.path).exists()
    assert other.exists()


def test_run_directory_goes_where_socket_paths_stay_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    run_dir = RunDir.create()

    assert len(run_dir.socket("0-0")) < 108
    run_dir.remove()


@pytest.mark.parametrize("name", ["abcd1234", "mp"])
def test_what_a_server_left_goes_when_the_next_one_starts(folder: Path, name: str) -> None:
    left = folder / (gone() + name)
    (left / "inner").mkdir(parents=True)
    left.chmod(0o700)

    run_dir = RunDir.create()

    assert [path.name for path in folder.iterdir()] == [Path(run_dir.path).name]
    run_dir.remove()
    assert not list(folder.iterdir())


def test_a_folder_that_is_held_stays_even_if_its_server_has_no_process_here(folder: Path) -> None:
    """A server in another container, whose numbers are none of ours."""
    path = folder / (gone() + "abcd")
    holder = hold_folder(path)

    RunDir.create().remove()
    assert path.exists()

    os.close(holder)
    RunDir.create().remove()
    assert not path.exists()


def test_a_folder_of_a_living_server_stays_even_if_nobody_holds_it(folder: Path) -> None:
    path = folder / f"omni-{os.getppid()}-{start_time(os.getppid())}-abcd"
    path.mkdir(mode=0o700)

    RunDir.create().remove()

    assert path.exists()


@pytest.mark.parametrize("name", ["omni-soak-x", "omni-12", "omni-meet-0-ab"])
def test_other_folders_are_none_of_ours(folder: Path, name: str) -> None:
    (folder / name).mkdir()

    RunDir.create().remove()

    assert (folder / name).exists()


def test_a_link_in_the_place_of_a_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    (folder / (gone() + "abcd")).symlink_to(tmp_path)

    RunDir.create().remove()

    assert (tmp_path / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_another_user_stays(folder: Path) -> None:
    path = folder / (gone() + "abcd")
    path.mkdir()
    os.chown(path, 12345, -1)

    RunDir.create().remove()

    assert path.exists()
    with pytest.raises(ConfigError, match="open to other users"):
        hold_folder(path)


def test_where_there_are_no_locks_a_server_starts_and_leaves_what_others_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    left = folder / (gone() + "abcd")
    left.mkdir(mode=0o700)
    monkeypatch.setattr(fcntl, "flock", flock)

    run_dir = RunDir.create()

    assert left.exists()
    run_dir.remove()
    assert not Path(run_dir.path).exists()


def test_a_folder_is_held_until_it_is_removed(folder: Path) -> None:
    run_dir = RunDir.create()

    descriptor = os.open(run_dir.path, os.O_RDONLY)
    assert not lock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)

    remove_unheld(Path(run_dir.path))
    assert Path(run_dir.path).exists()
    run_dir.remove()
