"""Devices as processes see them (DV-06), and stages on one device starting one after another (DV-07)."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_core.engine import devices
from omni_core.engine.devices import device_set, hold, lock_dir
from omni_core.engine.options import EngineOptions
from omni_core.errors import ConfigError
from omni_core.platforms import CPU, Platform
from omni_core.testing.running import running, states

FAKE = Platform("fake", "fake", visible_devices_env="FAKE_VISIBLE", start_method="forkserver")


def test_cpu_has_nothing_to_show_or_to_lock() -> None:
    found = device_set(CPU, "0", name="s")

    assert (dict(found.environment), found.locks) == ({}, ())


@pytest.mark.parametrize(
    ("launcher", "ids", "shown", "locked"),
    [
        ({}, "1,0", "1,0", ["fake-0", "fake-1"]),
        ({"FAKE_VISIBLE": "4,5,7"}, "2,0", "7,4", ["fake-4", "fake-7"]),
        ({"FAKE_VISIBLE": "4,5"}, None, None, ["fake-4", "fake-5"]),
        ({"FAKE_VISIBLE": "GPU-a,GPU-b"}, "1", "GPU-b", ["fake-GPU-b"]),
        ({}, None, None, []),
    ],
    ids=["all visible", "within the launcher's", "the launcher's as they are", "by name", "any"],
)
def test_ids_count_within_what_the_launcher_sees(
    launcher: dict[str, str], ids: str | None, shown: str | None, locked: list[str]
) -> None:
    """DV-06."""
    found = device_set(FAKE, ids, name="s", environ=launcher)

    assert dict(found.environment) == ({} if shown is None else {"FAKE_VISIBLE": shown})
    assert found.locks[0] == ("fake-all", locked == [])
    assert list(found.locks[1:]) == [(name, True) for name in locked]


def test_device_that_the_launcher_does_not_see_is_named() -> None:
    with pytest.raises(ConfigError, match="stage s uses device 2, but FAKE_VISIBLE shows 2"):
        device_set(FAKE, "2", name="s", environ={"FAKE_VISIBLE": "4,5"})


def test_folder_of_locks_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    folder = lock_dir()

    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="open to other users"):
        lock_dir()


async def order_of(tmp_path: Path, *sets: str | None) -> list[str]:
    """Return what happened when stages with these devices started at once: `+N` begin, `-N` end."""
    log: list[str] = []

    async def start(number: int, ids: str | None) -> None:
        async with hold(device_set(FAKE, ids, name="s", environ={}).locks, 20, who="s", folder=tmp_path):
            log.append(f"+{number}")
            await asyncio.sleep(0.05)
            log.append(f"-{number}")

    await asyncio.gather(*(start(number, ids) for number, ids in enumerate(sets)))
    return log


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("sets", "in_turn"),
    [(["0", "0"], True), (["0,1", "1,2"], True), (["0", "1"], False), ([None, "1"], True), ([None, None], True)],
    ids=["same", "overlapping", "disjoint", "any and one", "any and any"],
)
async def test_stages_on_one_device_start_one_after_another(tmp_path: Path, sets: list[str | None], in_turn: bool) -> None:
    """DV-07, E12."""
    log = await order_of(tmp_path, *sets)

    assert (log[1] == f"-{log[0][1]}") is in_turn


@pytest.mark.anyio
async def test_lock_of_another_server_holds_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    """DV-07."""
    code = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "fake-3.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        waiting = asyncio.create_task(order_of(tmp_path, "3"))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()

        other.kill()

        assert await asyncio.wait_for(waiting, 20) == ["+0", "-0"]


@pytest.mark.anyio
async def test_wait_for_a_device_is_bounded_and_ends_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DV-07."""
    monkeypatch.setattr(logging.getLogger("omni_core"), "propagate", True)
    locks = device_set(FAKE, "0", name="s", environ={}).locks
    async with hold(locks, 20, who="stage 0", folder=tmp_path):
        with caplog.at_level(logging.WARNING, logger=devices.__name__):
            async with hold(locks, 0.1, who="stage 1", folder=tmp_path):
                assert "stage 1: device fake-0 was not free within 0.1 s" in caplog.text


@pytest.mark.anyio
async def test_stages_that_share_a_device_start_and_are_shown_it(monkeypatch: pytest.MonkeyPatch, short_tmp: str) -> None:
    """E12."""
    # Not the folder for all temporary files: the fork server, which later tests use, may be started here.
    monkeypatch.setattr(devices, "lock_dir", lambda: Path(short_tmp))
    monkeypatch.setenv("FAKE_VISIBLE", "6,7")
    limits = EngineOptions(stage_init_timeout_s=20)
    told = {0: {"tell_env": ["FAKE_VISIBLE"]}}
    async with running(limits, platform=FAKE, devices={0: "1", 1: "1"}, engine_args=told) as orchestrator:
        assert states(orchestrator) == ["ready", "ready"]
        assert orchestrator._pools[0].replicas[0].process.facts["FAKE_VISIBLE"] == "7"
        assert sorted(os.listdir(short_tmp)) == ["fake-7.lock", "fake-all.lock"]
