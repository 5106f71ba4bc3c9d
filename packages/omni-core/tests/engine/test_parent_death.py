"""Nothing outlives the server, however it ends (B10): real servers, killed in each phase."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from omni_core.testing.waiting import all_gone, wait_until


@contextlib.contextmanager
def victim(phase: str, tmp: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process], Path]]:
    """Start a server, wait for its phase, and give it with everything below it and its run directory."""
    server = subprocess.Popen(
        [sys.executable, "-m", "omni_core.testing.victim", phase],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": tmp},
    )
    try:
        assert server.stdout is not None
        with server.stdout:
            run_dir = Path(server.stdout.readline().strip())
        yield server, psutil.Process(server.pid).children(recursive=True), run_dir
    finally:
        server.kill()
        server.wait(10)


@pytest.mark.parametrize("phase", ["preload", "start", "idle", "request"])
def test_killed_server_leaves_no_process_and_no_file(phase: str, short_tmp: str) -> None:
    with victim(phase, short_tmp) as (server, below, run_dir):
        # The fork server, the resource tracker of multiprocessing, and two stage hosts.
        assert len(below) == (2 if phase == "preload" else 4)
        assert run_dir.is_dir()

        server.kill()
        server.wait(10)

        wait_until(lambda: all_gone(below), "every process below the server to end", 10)
        wait_until(lambda: not os.listdir(short_tmp), "the server's folders to be removed", 10)


def test_a_server_killed_together_with_its_fork_server_leaves_nothing(short_tmp: str) -> None:
    with victim("idle", short_tmp) as (server, below, run_dir):
        for index in range(5000):  # removing them takes longer than a stage host needs to see its server's end and leave
            (run_dir / f"file-{index}").touch()
        fork_servers = [process for process in below if "forkserver" in " ".join(process.cmdline())[:200]]
        fork_server = next(process for process in fork_servers if not process.name().startswith("omni:"))

        server.send_signal(signal.SIGSTOP)  # so that it does not see the other's end
        fork_server.kill()
        server.kill()
        server.wait(10)

        wait_until(lambda: all_gone(below), "every process below the server to end", 10)
        wait_until(lambda: not os.listdir(short_tmp), "the server's folders to be removed", 10)


def test_ctrl_c_reaches_the_server_only(short_tmp: str) -> None:
    with victim("request", short_tmp) as (server, below, _):
        hosts = [process for process in below if process.name().startswith("omni:")]
        assert len(hosts) == 2
        assert all(os.getpgid(host.pid) == host.pid for host in hosts)

        server.send_signal(signal.SIGINT)

        assert server.wait(20) != 0
        wait_until(lambda: all_gone(below), "every process below the server to end", 10)
        wait_until(lambda: not os.listdir(short_tmp), "the server's folders to be removed", 10)


def test_script_without_a_main_guard_that_forgets_to_close_ends_and_leaves_nothing(short_tmp: str) -> None:
    script = Path(short_tmp) / "script.py"
    script.write_text(
        textwrap.dedent("""
            from omni_core.client import Omni
            from omni_core.testing.pipelines import fake_pipeline

            omni = Omni.from_resolved(fake_pipeline())
            print(omni.generate({"seed": 1, "count": 3})[0].audio.shape)
        """)
    )

    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TMPDIR": short_tmp},
    )

    assert (done.returncode, done.stdout) == (0, "(12, 1)\n"), done.stderr
    wait_until(lambda: os.listdir(short_tmp) == ["script.py"], "the server's folders to be removed", 10)
