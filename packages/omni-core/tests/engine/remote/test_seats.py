"""A remote stage's process as the head sees it, at the other end of a connection that a test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from omni_core.engine.channel import Channel, accept_one, connect
from omni_core.engine.messages import FromHost, Progress, Ready, ToHost
from omni_core.engine.remote.messages import Register
from omni_core.engine.remote.seats import RemoteProcess, Told
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio

WORKER = Register(b"", 1, -1, {}, [], "b", "mark", "127.0.0.1", 7)


async def attached(
    folder: str, on_message: Callable[[StageProcess, FromHost], None], on_death: Callable[[StageProcess], None]
) -> tuple[RemoteProcess, Channel[Any]]:
    """Return a process, and the worker's end of its connection."""
    process = RemoteProcess(fake_pipeline().stages[1], 0, Told(on_message, on_death, lambda: None), 60.0, WORKER)
    server, connection = await accept_one(f"{folder}/head.sock", FromHost, "the worker")
    worker = await connect(f"{folder}/head.sock", ToHost, "the head")
    process.attach(await connection)
    server.close()
    return process, worker


async def test_process_whose_messages_nobody_reads_any_more_is_dead_when_it_is_given_up(short_tmp: str) -> None:
    """Its connection has an end then that nobody sees: requests would wait for it to their deadlines."""
    deaths: list[str] = []

    def fail(process: StageProcess, message: FromHost) -> None:
        raise KeyError("a fault of ours")

    process, worker = await attached(short_tmp, fail, lambda process: deaths.append(process.reason))
    worker.post(Ready({}, 0.0))
    worker.post(Progress([]))
    await async_wait_until(lambda: any(task.done() for task in process._tasks), "the reader to fail")

    process.kill("it was silent for 60 s")

    await async_wait_until(lambda: deaths == ["it was silent for 60 s"], "its death")
    assert process.state is StageState.DEAD
    await asyncio.gather(*(task for task in process._tasks if task.done()), return_exceptions=True)
    await process.stop()
    await worker.close()
