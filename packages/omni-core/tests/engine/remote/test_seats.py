"""A remote stage's process as the head sees it, at the other end of a connection that a test holds, and who may bring one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from omni_core.engine.channel import Channel, accept_one, connect
from omni_core.engine.control import Control
from omni_core.engine.messages import FromHost, Leaving, Progress, Ready, Shutdown, ToHost
from omni_core.engine.options import EngineOptions
from omni_core.engine.orders import UNNAMED
from omni_core.engine.remote.messages import Register
from omni_core.engine.remote.seats import RemotePool, RemoteProcess, Told
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


# The weights of a worker


def pool_with(weights: str, *, is_taken: bool = False) -> RemotePool:
    control = Control({})
    control.take_over_weights(1, weights)
    told = Told(lambda *_: None, lambda *_: None, lambda: None)
    pool = RemotePool(fake_pipeline().stages[1], EngineOptions(), told, 60.0, "start it", control)
    if is_taken:
        pool.take_seat(replace(WORKER, weights=weights))
    return pool


@pytest.mark.parametrize(
    ("stage", "is_taken", "worker", "changed"),
    [
        ("", True, "", ""),
        ("", False, "step-7", ""),
        ("", True, "step-7", "this worker"),
        ("step-7", True, "", "this stage"),
        ("step-7", False, "", "this stage"),
        ("step-7", True, "step-7", ""),
        ("step-7", True, "step-8", "this stage"),
        (UNNAMED, False, UNNAMED, ""),
        (UNNAMED, True, UNNAMED, "this stage"),
    ],
)
def test_worker_is_taken_where_its_weights_are_the_stages(stage: str, is_taken: bool, worker: str, changed: str) -> None:
    found = pool_with(stage, is_taken=is_taken).why_not(replace(WORKER, weights=worker))

    assert bool(found) == bool(changed)
    assert changed in found


def test_weights_of_a_worker_that_is_taken_are_the_stages() -> None:
    pool = pool_with("")

    pool.take_seat(replace(WORKER, weights="step-7"))

    assert pool.control is not None
    assert pool.control.weights(1) == "step-7"


# A process that comes back


async def test_seat_is_not_ready_before_its_present_process_is_back_whatever_became_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one before may still wait for the other replicas of its stage."""
    pool = pool_with("")
    seat = pool.seats[0]
    may_end: dict[StageProcess, asyncio.Event] = {}

    async def bring_back(process: StageProcess, before: object) -> None:
        may_end[process] = asyncio.Event()
        await may_end[process].wait()

    monkeypatch.setattr(pool.control, "bring_back", bring_back)
    processes = []
    for _ in range(2):
        process = pool.take_seat(replace(WORKER, life="a")).process
        process.state = StageState.READY
        seat._note_ready()
        await asyncio.sleep(0)
        processes.append(process)
    first, second = processes

    may_end[first].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seat.state is StageState.STARTING

    may_end[second].set()
    await async_wait_until(lambda: seat.state is StageState.READY, "the seat to be ready")
    await pool.stop()


# A process that leaves


async def test_process_that_leaves_says_so_once_and_is_let_go_without_a_loss(
    short_tmp: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    heard: list[FromHost] = []
    deaths: list[StageState] = []
    process, worker = await attached(
        short_tmp, lambda _, message: heard.append(message), lambda process: deaths.append(process.state)
    )
    worker.post(Ready({}, 0.0))
    worker.post(Leaving())
    worker.post(Leaving())
    worker.post(Progress([]))
    await async_wait_until(lambda: heard, "its messages")

    process.let_go()

    assert isinstance(await asyncio.wait_for(worker.receive(), 10), Shutdown)
    await worker.close()
    await async_wait_until(lambda: deaths, "its end")
    assert deaths == [StageState.STOPPED]
    assert [type(message) for message in heard] == [Progress]
    assert caplog.text.count("stage 1 (vocoder) leaves") == 1
    assert "is dead" not in caplog.text
    await process.stop()


async def test_process_that_is_gone_before_it_was_let_go_is_lost(short_tmp: str, caplog: pytest.LogCaptureFixture) -> None:
    deaths: list[StageState] = []
    process, worker = await attached(short_tmp, lambda *_: None, lambda process: deaths.append(process.state))
    worker.post(Ready({}, 0.0))
    worker.post(Leaving())
    await async_wait_until(lambda: process.is_leaving, "its message")

    await worker.close()

    await async_wait_until(lambda: deaths, "its end")
    assert deaths == [StageState.DEAD]
    assert "stage 1 (vocoder) is dead: it lost its worker on b (127.0.0.1)" in caplog.text
    await process.stop()
