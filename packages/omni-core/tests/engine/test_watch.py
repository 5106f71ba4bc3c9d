from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from omni_core.engine.watch import Watch, Watched, format_watched, parse_watched, start_time
from omni_core.testing.waiting import wait_until

_WATCHER = """
import os, sys, time
from omni_core.engine.watch import parse_watched, watch_process
if sys.argv[3] == "group":
    os.setpgid(0, 0)
watch_process(parse_watched(sys.argv[1]), sys.argv[2] or None)
print("watching", flush=True)
time.sleep(600)
"""


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def watcher(watched: str, run_dir: str = "", group: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _WATCHER, watched, run_dir, group], stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with process.stdout:
        return process.stdout.readline()


@pytest.mark.parametrize("group", ["", "group"])
def test_process_ends_with_the_watched_one_and_removes_the_run_directory(tmp_path: Path, group: str) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "inner").mkdir(parents=True)
    server = sleeper()
    watching = watcher(format_watched([Watched.of(server.pid)]), str(run_dir), group)
    assert said(watching) == "watching\n"

    server.kill()

    assert watching.wait(20) == -signal.SIGKILL
    assert not run_dir.exists()
    server.wait(20)


def test_run_directory_stays_when_another_watched_process_ends(tmp_path: Path) -> None:
    server, host = sleeper(), sleeper()
    watching = watcher(format_watched([Watched.of(server.pid), Watched.of(host.pid)]), str(tmp_path))
    said(watching)

    host.kill()

    assert watching.wait(20) == -signal.SIGKILL
    assert tmp_path.exists()
    for process in (server, host):
        process.kill()
        process.wait(20)


def test_number_that_belongs_to_a_later_process_counts_as_gone() -> None:
    server = sleeper()
    start = start_time(server.pid)
    assert start is not None

    watching = watcher(f"{server.pid}:{start - 1}")

    assert said(watching) == ""
    assert watching.wait(20) == -signal.SIGKILL
    server.kill()
    server.wait(20)


def test_process_that_is_gone_already_ends_the_watcher_at_once() -> None:
    server = sleeper()
    watched = Watched.of(server.pid)
    server.kill()
    server.wait(20)

    watching = watcher(str(watched))

    assert said(watching) == ""
    assert watching.wait(20) == -signal.SIGKILL


def test_stopped_watch_leaves_no_thread_and_no_descriptor() -> None:
    process = psutil.Process()
    gc.collect()
    threads, descriptors = process.num_threads(), process.num_fds()

    Watch([Watched.of(os.getpid())]).stop()

    wait_until(lambda: process.num_threads() <= threads, "the thread's end")  # one of an earlier test may end, too
    assert process.num_fds() <= descriptors


_LEAVING = """
import os, sys, time
from pathlib import Path
from omni_core.engine.watch import Watch, parse_watched
def clean_up():
    time.sleep(0.5)
    Path(sys.argv[2]).touch()
watch = Watch(parse_watched(sys.argv[1]), clean_up)
print("watching", flush=True)
sys.stdin.read()
watch.give_way(float(sys.argv[3]))
os._exit(7)
"""


@pytest.mark.parametrize("order", ["server first", "server later"])
def test_process_that_leaves_lets_the_watch_clean_up_first(tmp_path: Path, order: str) -> None:
    server = sleeper()
    cleaned = tmp_path / "cleaned"
    command = [sys.executable, "-c", _LEAVING, format_watched([Watched.of(server.pid)]), str(cleaned), "20"]
    leaving = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said(leaving)
    assert leaving.stdin is not None

    ends = [server.kill, leaving.stdin.close]
    for end in ends if order == "server first" else reversed(ends):
        end()

    assert leaving.wait(20) == -signal.SIGKILL
    assert cleaned.exists()
    server.wait(20)


def test_process_that_leaves_a_living_server_goes_its_way(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEAVING, format_watched([Watched.of(os.getpid())]), str(tmp_path / "cleaned"), "0"]

    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=20, check=False)

    assert (done.returncode, done.stdout) == (7, "watching\n")
    assert not (tmp_path / "cleaned").exists()


def test_watched_processes_survive_the_environment() -> None:
    processes = (Watched(12, 3456), Watched(78))

    assert parse_watched(format_watched(processes)) == processes
