"""What holds a request back and what ends one that is stuck: windows, stream slots, stalls. Real processes."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import numpy as np
import pytest

from omni_core.engine.options import EngineOptions
from omni_core.errors import DeadlineError
from omni_core.testing.fakes import make_audio
from omni_core.testing.running import audio, collect, loads, request, running, until_empty
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio


# Stalls


async def test_stage_that_goes_silent_ends_the_request_and_is_named() -> None:
    """B12."""
    async with running(EngineOptions(stall_timeout_s=1.5)) as orchestrator:
        other = asyncio.create_task(collect(orchestrator, request(2, 400, step_s=0.005)))

        with pytest.raises(DeadlineError, match=r"stage 0 \(talker\) did nothing for the request for 1\.5 s") as caught:
            await collect(orchestrator, request(1, 10, hang_at=4))

        assert caught.value.http_status == 504
        assert np.array_equal(audio(await other), make_audio(2, 400))
        await until_empty(orchestrator)


async def test_silent_consumer_is_named_and_not_the_producer_that_waits_for_it() -> None:
    """B12."""
    limits = EngineOptions(stall_timeout_s=1.0)
    async with running(limits, stream={"chunk_frames": 1}, engine_args={1: {"step_s": 3.0}}) as orchestrator:
        with pytest.raises(DeadlineError, match=r"stage 1 \(vocoder\) did nothing"):
            await collect(orchestrator, request(1, 100))

        await until_empty(orchestrator)


async def test_reader_that_pauses_is_no_stall() -> None:
    async with running(EngineOptions(stall_timeout_s=1.0), stream={"chunk_frames": 1}) as orchestrator:
        stream = orchestrator.submit(request(1, 300))
        outputs = [await anext(stream)]

        await asyncio.sleep(2.0)
        outputs += [output async for output in stream]

        assert np.array_equal(audio(outputs), make_audio(1, 300))


async def test_stage_that_works_without_handing_on_is_not_silent() -> None:
    # Its host says with each heartbeat, every two seconds, on which requests it has worked.
    async with running(EngineOptions(stall_timeout_s=4.0), async_chunk=False) as orchestrator:
        outputs = await collect(orchestrator, request(1, 450, step_s=0.01))

        assert np.array_equal(audio(outputs), make_audio(1, 450))


async def test_request_that_waits_for_room_does_not_stall() -> None:
    limits = EngineOptions(stall_timeout_s=1.0)
    async with running(limits, engine_args={0: {"max_num_seqs": 1}}) as orchestrator:
        first = asyncio.create_task(collect(orchestrator, request(1, 400, step_s=0.005)))
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[0] == 1, "the request to run")

        outputs = await collect(orchestrator, request(2, 5))

        assert first.done()
        assert np.array_equal(audio(outputs), make_audio(2, 5))


# Stream slots


async def order_of_outputs(window: int) -> list[int]:
    """Return which request each output belonged to, in the order in which they came."""
    order: list[int] = []
    async with running(values={"active_stream_window": window}, stream={"chunk_frames": 1}) as orchestrator:

        async def read(seed: int) -> None:
            outputs = []
            async for output in orchestrator.submit(request(seed, 60, step_s=0.002)):
                order.append(seed)
                outputs.append(output)
            assert np.array_equal(audio(outputs), make_audio(seed, 60))

        await asyncio.gather(*(read(seed) for seed in range(3)))
        await until_empty(orchestrator)
    return order


async def test_one_stream_slot_serves_one_request_after_the_other() -> None:
    order = await order_of_outputs(1)

    changes = sum(1 for before, after in itertools.pairwise(order) if before != after)
    assert changes == 2


async def test_no_limit_of_stream_slots_serves_all_at_once() -> None:
    order = await order_of_outputs(0)

    assert {0, 1, 2} == set(order[:30])


async def test_stream_slot_is_free_again_after_an_abort() -> None:
    async with running(values={"active_stream_window": 1}, stream={"chunk_frames": 1}) as orchestrator:
        first = orchestrator.submit(request(1, 10**6, step_s=0.002))
        await anext(first)
        second = asyncio.create_task(collect(orchestrator, request(2, 5)))
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[1] == 2, "both in the second stage")
        assert not second.done()

        await cast("Any", first).aclose()

        assert np.array_equal(audio(await asyncio.wait_for(second, 20)), make_audio(2, 5))
        await until_empty(orchestrator)


# Windows


async def test_slow_reader_stops_its_own_request_and_not_its_neighbours() -> None:
    async with running(stream={"chunk_frames": 1, "max_inflight": 2}) as orchestrator:
        slow = orchestrator.submit(request(1, 5000))
        outputs = [await anext(slow)]

        others = await asyncio.gather(*(collect(orchestrator, request(seed, 400)) for seed in range(2, 6)))
        for seed, found in enumerate(others, start=2):
            assert np.array_equal(audio(found), make_audio(seed, 400))

        # The slow one's share of what was made: its windows, far from 5000.
        talker = orchestrator._pools[0].replicas[0].process
        before = talker.load
        await async_wait_until(lambda: talker.load is not before, "a heartbeat")
        assert 4 * 400 < talker.load["made"] <= 4 * 400 + 64 + 8 + 2 + 10
        outputs += [output async for output in slow]
        assert np.array_equal(audio(outputs), make_audio(1, 5000))
        await until_empty(orchestrator)
