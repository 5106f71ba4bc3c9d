"""Admission: how many requests run, in which order the others wait, and what those are told for whom there is no room."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any, cast

import numpy as np
import pytest

from omni_core.engine.options import EngineOptions, LbPolicy
from omni_core.engine.orchestrator import Orchestrator
from omni_core.errors import DeadlineError, NotFoundError, OverloadedError, StageDeadError
from omni_core.request import OmniRequest
from omni_core.testing.fakes import make_audio
from omni_core.testing.running import audio, collect, loads, pids, request, running, until_empty
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio

ONE = {0: {"max_num_seqs": 1}}
TWO = {0: {"max_num_seqs": 2}}


def begin(orchestrator: Orchestrator, seed: int, count: int = 10**6, **more: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(collect(orchestrator, request(seed, count, step_s=0.005, **more)))


async def until_queued(orchestrator: Orchestrator, count: int) -> None:
    await async_wait_until(lambda: orchestrator.health()["queued"] == count, f"{count} requests to wait")


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_requests_beyond_the_capacity_wait_and_begin_in_order() -> None:
    async with running(engine_args=TWO) as orchestrator:
        order: list[int] = []

        async def note(seed: int) -> np.ndarray[Any, Any]:
            outputs = []
            async for output in orchestrator.submit(request(seed, 12, step_s=0.002)):
                if seed not in order:
                    order.append(seed)
                outputs.append(output)
            return audio(outputs)

        tasks = [asyncio.create_task(note(seed)) for seed in range(8)]
        await asyncio.sleep(0)  # in which each of them is taken in
        assert orchestrator.health()["queued"] == 6
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, loads(orchestrator, "in_flight")[0])
            await asyncio.sleep(0.001)

        assert most == 2
        # Two run at a time, so a neighbour may overtake; nobody overtakes two.
        assert all(abs(place - seed) <= 1 for place, seed in enumerate(order))
        for seed, task in enumerate(tasks):
            assert np.array_equal(task.result(), make_audio(seed, 12))
        await until_empty(orchestrator)


async def test_full_queue_refuses_and_says_when_to_try_again() -> None:
    async with running(EngineOptions(max_queued_requests=2), engine_args=ONE) as orchestrator:
        tasks = [begin(orchestrator, seed) for seed in range(3)]
        await until_queued(orchestrator, 2)

        with pytest.raises(OverloadedError, match="2 requests wait already") as caught:
            await collect(orchestrator, request(9))

        assert caught.value.http_status == 429
        assert caught.value.retry_after_s is not None
        assert 1 <= caught.value.retry_after_s <= 60
        assert orchestrator.health()["requests"] == 3
        await end(*tasks)
        assert np.array_equal(audio(await collect(orchestrator, request(2))), make_audio(2, 10))


async def test_no_queue_refuses_what_cannot_run_at_once() -> None:
    async with running(EngineOptions(max_queued_requests=0), engine_args=ONE) as orchestrator:
        task = begin(orchestrator, 1)
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[0] == 1, "the request to run")

        with pytest.raises(OverloadedError):
            await collect(orchestrator, request(2))

        await end(task)
        assert np.array_equal(audio(await collect(orchestrator, request(3))), make_audio(3, 10))


async def test_request_that_waits_too_long_is_refused_and_others_run_on() -> None:
    async with running(EngineOptions(max_queue_time_s=0.2), engine_args=ONE) as orchestrator:
        first = begin(orchestrator, 1, 200)
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[0] == 1, "the request to run")

        with pytest.raises(OverloadedError, match=r"waited 0\.2 s for room"):
            await collect(orchestrator, request(2))

        assert np.array_equal(audio(await first), make_audio(1, 200))
        await until_empty(orchestrator)


async def test_deadline_counts_while_a_request_waits() -> None:
    async with running(engine_args=ONE) as orchestrator:
        first = begin(orchestrator, 1)
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[0] == 1, "the request to run")

        with pytest.raises(DeadlineError, match=r"not finished within 0\.2 s"):
            await collect(orchestrator, request(2, timeout_s=0.2))

        assert orchestrator.health()["queued"] == 0
        await end(first)


async def test_waiting_request_can_be_aborted_or_left() -> None:
    async with running(engine_args=ONE) as orchestrator:
        tasks = [begin(orchestrator, seed, name=f"r{seed}") for seed in range(4)]
        await until_queued(orchestrator, 3)

        assert orchestrator.abort("r1")
        await end(tasks[2])

        with pytest.raises(NotFoundError):
            await tasks[1]
        await until_queued(orchestrator, 1)
        await end(tasks[0])
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[0] == 1, "the last one to run")
        await end(tasks[3])
        await until_empty(orchestrator)


async def test_replicas_add_up_and_none_gets_more_than_it_takes() -> None:
    limits = EngineOptions(lb_policy=LbPolicy.RANDOM)
    async with running(limits, engine_args=TWO, replicas={0: 3}) as orchestrator:
        tasks = [begin(orchestrator, seed) for seed in range(9)]
        await until_queued(orchestrator, 3)

        assert loads(orchestrator, "in_flight")[:3] == [2, 2, 2]

        await end(*tasks)
        await until_empty(orchestrator)


async def test_waiting_requests_fail_when_the_stage_they_wait_for_dies() -> None:
    async with running(engine_args=ONE) as orchestrator:
        tasks = [begin(orchestrator, seed) for seed in range(5)]
        await until_queued(orchestrator, 4)

        os.kill(pids(orchestrator)[0], signal.SIGKILL)

        for task in tasks:
            with pytest.raises(StageDeadError):
                await asyncio.wait_for(task, 10)
        assert orchestrator.health()["requests"] == 0


async def test_request_that_fails_in_its_begin_does_not_hold_up_those_behind_it() -> None:
    async with running(engine_args=ONE) as orchestrator:
        first = begin(orchestrator, 1)
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[0] == 1, "the request to run")
        broken = [
            asyncio.create_task(
                collect(orchestrator, OmniRequest(f"b{n}", {"seed": 1, "count": 1}, {0: {"extra_args": {"a": object()}}}))
            )
            for n in range(300)
        ]
        good = begin(orchestrator, 5, 3)
        await until_queued(orchestrator, 301)

        await end(first)

        assert np.array_equal(audio(await asyncio.wait_for(good, 20)), make_audio(5, 3))
        for task in broken:
            with contextlib.suppress(Exception):
                await task
            assert "cannot be sent" in str(cast("Any", task.exception()))
        await until_empty(orchestrator)


async def test_place_is_free_when_the_first_stage_is_done_and_later_ones_still_work() -> None:
    async with running(engine_args={**ONE, 1: {"step_s": 0.05}}, stream={"chunk_frames": 1}) as orchestrator:
        first = asyncio.create_task(collect(orchestrator, request(1, 8)))
        second = asyncio.create_task(collect(orchestrator, request(2, 8)))

        await async_wait_until(lambda: loads(orchestrator, "in_flight")[1] == 2, "both in the second stage")

        assert not first.done()
        assert np.array_equal(audio(await first), make_audio(1, 8))
        assert np.array_equal(audio(await second), make_audio(2, 8))
        await until_empty(orchestrator)
