"""Requests that are fed while they answer, through a real stage process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.engine.feed import MAX_PAYLOAD_BYTES, WINDOW
from omni_core.engine.options import EngineOptions
from omni_core.engine.orchestrator import Orchestrator
from omni_core.errors import DeadlineError, NotFoundError, RequestError, StageDeadError
from omni_core.pipeline import PipelineConfig
from omni_core.request import OmniRequest
from omni_core.stage import ResolvedPipeline
from omni_core.streaming import StreamingRequest
from omni_core.testing.pipelines import VOCODER, fake_pipeline
from omni_core.testing.running import until_empty
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio


def one_stage(replicas: int = 1, **engine_args: Any) -> ResolvedPipeline:
    """Return a pipeline of one light stage, which its callers feed."""
    whole = fake_pipeline()
    topology = replace(VOCODER, stage_id=0, input_sources=())
    config = PipelineConfig(model_type="fed", model_arch="FakeModel", stages=(topology,))
    stage = replace(whole.stages[1], topology=topology, inputs=(), num_replicas=replicas, engine_args=engine_args)
    return replace(whole, config=config, stages=(stage,))


@contextlib.asynccontextmanager
async def running(pipeline: ResolvedPipeline, options: EngineOptions | None = None) -> AsyncIterator[Orchestrator]:
    orchestrator = Orchestrator(pipeline, options)
    await orchestrator.start()
    try:
        yield orchestrator
    finally:
        await orchestrator.stop(0)


def opened(orchestrator: Orchestrator, seed: int = 0, timeout_s: float = 60.0, **fields: Any) -> StreamingRequest:
    first = {"seed": seed, "codes": np.zeros((0, 1), np.int64)}
    return StreamingRequest(orchestrator, OmniRequest(f"fed-{seed}", first, timeout_s=timeout_s, **fields))


def codes(*values: int) -> dict[str, Any]:
    return {"codes": np.array(values, np.int64).reshape(-1, 1)}


async def totals(request: StreamingRequest) -> list[int]:
    """Return the first sample of each output that has some."""
    return [int(output.data[0, 0]) async for output in request.outputs() if len(output.data)]


async def test_each_payload_is_answered_while_more_may_come() -> None:
    async with running(one_stage()) as orchestrator:
        request = opened(orchestrator, seed=100)
        answers = request.outputs()
        first = asyncio.ensure_future(anext(answers))

        found = []
        for value in (1, 2, 3):
            await request.push(codes(value))
            output = await first
            while not len(output.data):
                output = await anext(answers)
            found.append(int(output.data[0, 0]))
            first = asyncio.ensure_future(anext(answers))
        await request.push(codes(4), final=True)
        last = await first

        assert found == [101, 103, 106]
        assert (int(last.data[0, 0]), last.finished) == (110, True)
        await until_empty(orchestrator)


async def test_requests_that_are_fed_at_the_same_time_do_not_mix() -> None:
    async with running(one_stage()) as orchestrator:
        requests = [opened(orchestrator, seed=1000 * number) for number in range(6)]
        answers = [asyncio.ensure_future(totals(request)) for request in requests]

        for value in range(1, 6):
            await asyncio.gather(*(request.push(codes(value), final=value == 5) for request in requests))

        sums = [1, 3, 6, 10, 15]
        assert [await answer for answer in answers] == [[1000 * number + total for total in sums] for number in range(6)]


async def test_a_caller_that_is_too_fast_waits() -> None:
    async with running(one_stage(step_s=0.2)) as orchestrator:
        request = opened(orchestrator)
        answer = asyncio.ensure_future(totals(request))
        done = 0

        async def push_many() -> None:
            nonlocal done
            for _ in range(4 * WINDOW):
                await request.push(codes(1))
                done += 1

        pushing = asyncio.ensure_future(push_many())
        await async_wait_until(lambda: done >= WINDOW, "the window is full")
        assert done < 4 * WINDOW

        pushing.cancel()
        answer.cancel()
        await asyncio.gather(pushing, answer, return_exceptions=True)
        await request.close()
        await until_empty(orchestrator)


async def test_a_request_that_only_its_caller_keeps_waiting_does_not_stall() -> None:
    async with running(one_stage(), EngineOptions(stall_timeout_s=1.0)) as orchestrator:
        request = opened(orchestrator)
        answer = asyncio.ensure_future(totals(request))
        await request.push(codes(1))

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(answer), 2.0)
        await request.push(codes(2), final=True)

        assert await answer == [1, 3]


async def test_a_stage_is_not_blamed_for_the_silence_of_a_caller_that_has_just_ended_it() -> None:
    async with running(one_stage(), EngineOptions(stall_timeout_s=10.0)) as orchestrator:
        request = opened(orchestrator)
        answer = asyncio.ensure_future(totals(request))
        await request.push(codes(1))
        (flight,) = orchestrator._flights.values()
        await async_wait_until(lambda: flight.feed and flight.feed.is_waiting, "the stage to take it")
        flight.moved -= 100.0  # so long the caller was silent

        await request.push(codes(2), final=True)
        orchestrator._watch(flight)  # and the timer runs out before the stage can answer

        assert await answer == [1, 3]


async def test_pushing_after_the_end_is_an_error_and_closing_twice_is_none() -> None:
    async with running(one_stage()) as orchestrator:
        request = opened(orchestrator)
        answer = asyncio.ensure_future(totals(request))
        await request.push(codes(1), final=True)
        await answer

        with pytest.raises(NotFoundError, match="has ended"):
            await request.push(codes(2))
        await request.close()
        await request.close()


async def test_closing_ends_it_alone_and_whoever_waits_for_its_outputs() -> None:
    async with running(one_stage()) as orchestrator:
        requests = [opened(orchestrator, seed=0), opened(orchestrator, seed=0)]
        answers = [asyncio.ensure_future(totals(request)) for request in requests]
        for request in requests:
            await request.push(codes(1))

        await requests[0].close()
        await requests[0].close()

        with pytest.raises(NotFoundError, match="was aborted"):
            await answers[0]
        await requests[1].push(codes(2), final=True)
        assert await answers[1] == [1, 3]
        await until_empty(orchestrator)


async def test_a_deadline_ends_it_and_whoever_waits() -> None:
    async with running(one_stage()) as orchestrator:
        request = opened(orchestrator, timeout_s=0.3)

        with pytest.raises(DeadlineError):
            await totals(request)
        with pytest.raises(NotFoundError):
            await request.push(codes(1))


async def test_whoever_waits_for_room_hears_at_once_that_the_request_has_ended() -> None:
    async with running(one_stage(step_s=30.0)) as orchestrator:
        request = opened(orchestrator)
        answer = asyncio.ensure_future(totals(request))
        pushes = [asyncio.ensure_future(request.push(codes(1))) for _ in range(WINDOW + 3)]
        await async_wait_until(lambda: sum(push.done() for push in pushes) == WINDOW, "the window to be full")

        assert orchestrator.abort(request.request.request_id)

        async with asyncio.timeout(10):
            ends = await asyncio.gather(answer, *pushes[WINDOW:], return_exceptions=True)
        assert [type(end) for end in ends] == [NotFoundError] * 4


async def test_nothing_follows_the_last_payload() -> None:
    async with running(one_stage(step_s=0.2)) as orchestrator:
        request = opened(orchestrator)
        answer = asyncio.ensure_future(totals(request))
        pushes = [asyncio.ensure_future(request.push(codes(1), final=number == WINDOW)) for number in range(WINDOW + 3)]

        ends = await asyncio.gather(*pushes, return_exceptions=True)

        assert ends[: WINDOW + 1] == [None] * (WINDOW + 1)
        assert [type(end) for end in ends[WINDOW + 1 :]] == [RequestError] * 2
        assert await answer == list(range(1, WINDOW + 2))
        await until_empty(orchestrator)


async def test_a_request_that_nobody_begins_is_not_waited_for_without_end() -> None:
    request = StreamingRequest(Orchestrator(one_stage()), OmniRequest("idle", {}, timeout_s=0.05))

    with pytest.raises(DeadlineError, match=r"did not begin within 0\.05 s") as late:
        await request.push(codes(1))
    await request.close()

    assert "take its outputs" in late.value.hint


@pytest.mark.parametrize("replica", [1, -1])
async def test_a_replica_that_there_is_not_is_the_callers_error(replica: int) -> None:
    async with running(one_stage()) as orchestrator:
        with pytest.raises(RequestError, match=f"has no replica {replica}"):
            await totals(opened(orchestrator, replicas={0: replica}))

        assert orchestrator.health()["requests"] == 0


async def test_a_payload_that_is_too_long_is_refused() -> None:
    async with running(one_stage()) as orchestrator:
        request = opened(orchestrator)

        with pytest.raises(RequestError, match="payload"):
            await request.push({"codes": np.zeros(MAX_PAYLOAD_BYTES, np.int8)})
        await request.close()


async def test_it_runs_on_the_replica_that_was_asked_for_and_dies_with_it() -> None:
    """DP-06, DP-10."""
    deaths: list[tuple[int, int, str]] = []
    async with running(one_stage(replicas=2)) as orchestrator:
        orchestrator.witnesses.deaths.append(lambda *death: deaths.append(death))
        requests = [opened(orchestrator, seed, replicas={0: replica}) for seed, replica in ((0, 1), (10, 1), (20, 0))]
        answers = [asyncio.ensure_future(totals(request)) for request in requests]
        for request in requests:
            await request.push(codes(1))
        by_replica = {replica["replica"]: replica for replica in orchestrator.health()["stages"]}
        assert (by_replica[0]["in_flight"], by_replica[1]["in_flight"]) == (1, 2)

        import os
        import signal

        os.kill(by_replica[1]["pid"], signal.SIGKILL)
        for answer in answers[:2]:
            with pytest.raises(StageDeadError):
                await answer
        await requests[2].push(codes(2), final=True)

        assert await answers[2] == [21, 23]
        assert [(stage, replica) for stage, replica, _ in deaths] == [(0, 1)]
        with pytest.raises(StageDeadError):
            await totals(opened(orchestrator, 30, replicas={0: 1}))
