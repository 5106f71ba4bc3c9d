"""A worker and the signals that stop it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any, cast

import pytest

from omni_core.errors import StageDeadError
from omni_server.headless import run_until_stopped

pytestmark = pytest.mark.anyio


class FakeWorker:
    """A worker whose requests end when it is told so, and whose stage ends then, or when it is told so, too."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.finished = asyncio.Event()
        self.go_on = asyncio.Event()
        self.is_leaving = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def run(self) -> None:
        self.told.append("run")
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.told.append("cut off")
            raise
        finally:
            self.finished.set()
            await self.may_close.wait()
            self.told.append("closed")

    def leave(self) -> None:
        self.told.append("leave")
        self.is_leaving.set()


async def start(worker: FakeWorker, drain_timeout_s: float) -> asyncio.Task[int]:
    """Run a worker until SIGTERM has come."""
    task = asyncio.create_task(run_until_stopped(cast("Any", worker), drain_timeout_s))
    await asyncio.sleep(0)  # its signals are taken from here on
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(worker.is_leaving.wait(), 10)
    return task


async def test_worker_that_is_stopped_finishes_what_it_has() -> None:
    worker = FakeWorker()
    task = await start(worker, 60.0)
    assert not task.done()

    worker.go_on.set()

    assert await asyncio.wait_for(task, 10) == 0
    assert worker.told == ["run", "leave", "closed"]


async def test_end_of_the_stage_is_not_cut_short_by_the_time_for_requests() -> None:
    worker = FakeWorker()
    worker.go_on.set()
    worker.may_close.clear()
    worker.leave = lambda: worker.is_leaving.set()  # type: ignore[method-assign]

    task = await start(worker, 0.01)
    await asyncio.sleep(0.1)  # ten times as long as requests have
    worker.may_close.set()

    assert await asyncio.wait_for(task, 10) == 0
    assert worker.told == ["run", "closed"]


async def test_requests_of_a_worker_are_cut_off_when_their_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker()

    task = await start(worker, 0.01)

    assert await asyncio.wait_for(task, 10) == 0
    assert worker.told == ["run", "leave", "cut off", "closed"]
    assert "requests are cut off: they did not end within 0.01 s" in caplog.text


async def test_stage_that_dies_while_the_worker_leaves_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    class Dying(FakeWorker):
        async def run(self) -> None:
            await self.is_leaving.wait()
            self.finished.set()
            raise StageDeadError("stage 1 is dead")

    with pytest.raises(StageDeadError):
        await asyncio.wait_for(await start(Dying(), 60.0), 10)
    assert "stopping: no new requests, up to 60 s" in caplog.text
