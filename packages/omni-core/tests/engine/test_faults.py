"""The fault matrix: what a fault costs the client, and that nothing of it is left. Real processes; the server's own death is in
test_parent_death.py."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing.forkserver
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest

from omni_core.engine.options import EngineOptions
from omni_core.engine.orchestrator import Orchestrator
from omni_core.errors import DeadlineError, NotFoundError, ServiceError, StageDeadError, StageStartError
from omni_core.stage import RestartPolicy
from omni_core.testing.fakes import make_audio
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.running import audio, collect, loads, pids, request, running, states, until_empty
from omni_core.testing.waiting import all_gone, async_wait_until

pytestmark = pytest.mark.anyio

AGAIN = RestartPolicy("on-failure", backoff_s=0.05)
SOON_S = 10.0
"""Within this time a client is told, wherever the fault is."""


@pytest.fixture(autouse=True)
def _shared_memory_is_as_before() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    left = {name for name in set(os.listdir("/dev/shm")) - before if "omni" in name}
    assert not left


def fork_server_pid() -> int:
    """Return the fork server's process."""
    return int(cast("Any", multiprocessing.forkserver)._forkserver._forkserver_pid)


async def hosts_of(orchestrator: Orchestrator) -> list[psutil.Process]:
    """Return the stage processes, once each is forked."""
    await async_wait_until(lambda: all(pids(orchestrator)) and len(pids(orchestrator)) == 2, "both processes")
    return [psutil.Process(pid) for pid in pids(orchestrator)]


async def works(orchestrator: Orchestrator) -> None:
    """Check that a request is answered and nothing is left of those before."""
    assert np.array_equal(audio(await asyncio.wait_for(collect(orchestrator, request(77)), 20)), make_audio(77, 10))
    await until_empty(orchestrator)


async def descriptors(processes: list[psutil.Process]) -> list[int]:
    """Return how many descriptors processes keep open: the fewest of some looks, as a heartbeat opens more for a moment."""
    looks = []
    for _ in range(20):
        looks.append([process.num_fds() for process in processes])
        await asyncio.sleep(0.01)
    return [min(counts) for counts in zip(*looks, strict=True)]


# SIGKILL


@pytest.mark.parametrize("stage_id", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
async def test_stage_killed_while_it_loads(stage_id: int, number: signal.Signals, run_dirs: Callable[[], list[Path]]) -> None:
    """B08."""
    orchestrator = Orchestrator(fake_pipeline(engine_args={stage_id: {"sleep_s": 600}}, restart=AGAIN))
    starting = asyncio.create_task(orchestrator.start())
    hosts = await hosts_of(orchestrator)

    hosts[stage_id].send_signal(number)

    with pytest.raises(StageStartError, match=rf"stage {stage_id} .* was ended by {number.name} while it started"):
        await asyncio.wait_for(starting, SOON_S)
    assert all_gone(hosts)
    assert not run_dirs()


@pytest.mark.parametrize("stage_id", [0, 1])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "mid-stream"])
async def test_stage_killed_while_it_serves(stage_id: int, busy: bool) -> None:
    """B09."""
    async with running(restart=AGAIN, stream={"chunk_frames": 1}) as orchestrator:
        tasks = []
        if busy:
            tasks = [asyncio.create_task(collect(orchestrator, request(n, 10**6, step_s=0.01))) for n in range(3)]
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [3, 3], "the requests in both stages")
        process = psutil.Process(pids(orchestrator)[stage_id])

        process.kill()

        for task in tasks:
            with pytest.raises(StageDeadError, match=f"stage {stage_id}"):
                await asyncio.wait_for(task, SOON_S)
        await async_wait_until(lambda: orchestrator.health()["stages"][stage_id]["restarts"] == 1, "the restart")
        await async_wait_until(lambda: orchestrator.health()["healthy"], "the stage to be back")
        assert all_gone([process])
        await works(orchestrator)


@pytest.mark.parametrize("moment", ["loading", "idle", "mid-stream"])
async def test_fork_server_killed(moment: str) -> None:
    slow = {1: {"sleep_s": 1.0}} if moment == "loading" else {}
    orchestrator = Orchestrator(fake_pipeline(engine_args=slow, restart=AGAIN, stream={"chunk_frames": 1}))
    starting = asyncio.create_task(orchestrator.start())
    try:
        if moment == "loading":
            await hosts_of(orchestrator)
        else:
            await starting
        task = None
        if moment == "mid-stream":
            task = asyncio.create_task(collect(orchestrator, request(1, 100, step_s=0.01)))
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")
        killed = fork_server_pid()

        os.kill(killed, signal.SIGKILL)
        await async_wait_until(lambda: not psutil.pid_exists(killed) or _is_zombie(killed), "the fork server to end")
        await asyncio.wait_for(starting, 30)

        # Stages that are forked do not need it any more, and the next one gets a new one.
        if task is not None:
            assert np.array_equal(audio(await asyncio.wait_for(task, 20)), make_audio(1, 100))
        await works(orchestrator)
        os.kill(pids(orchestrator)[1], signal.SIGKILL)
        await async_wait_until(lambda: states(orchestrator)[1] == "restarting", "the restart")
        await async_wait_until(lambda: orchestrator.health()["healthy"], "the stage to be back")
        assert fork_server_pid() != killed
        await works(orchestrator)
    finally:
        await orchestrator.stop(0)


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


# SIGSTOP


async def test_stage_stopped_while_it_loads_hits_its_start_timeout() -> None:
    """B07."""
    orchestrator = Orchestrator(fake_pipeline(engine_args={1: {"sleep_s": 600}}), EngineOptions(stage_init_timeout_s=5.0))
    starting = asyncio.create_task(orchestrator.start())
    hosts = await hosts_of(orchestrator)

    hosts[1].send_signal(signal.SIGSTOP)

    with pytest.raises(StageStartError, match=r"stage 1 \(vocoder\) was not ready within 5 s"):
        await asyncio.wait_for(starting, 20)
    assert all_gone(hosts)


@pytest.mark.parametrize("stage_id", [0, 1])
async def test_stage_stopped_while_it_serves_is_replaced(stage_id: int) -> None:
    async with running(EngineOptions(stage_heartbeat_timeout_s=3), restart=AGAIN, stream={"chunk_frames": 1}) as orchestrator:
        task = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.01)))
        await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")

        os.kill(pids(orchestrator)[stage_id], signal.SIGSTOP)

        with pytest.raises(StageDeadError, match=rf"stage {stage_id} .* it was silent for 3 s"):
            await asyncio.wait_for(task, 20)
        await async_wait_until(lambda: orchestrator.health()["healthy"], "the stage to be back")
        await works(orchestrator)


# Faults of one request


@pytest.mark.parametrize(
    ("inputs", "engine_args"),
    [({"break_at": 3}, {}), ({}, {1: {"poison": int(make_audio(5, 1)[0, 0]) - 5}})],
    ids=["first stage", "second stage"],
)
async def test_step_that_raises_costs_its_own_request(inputs: dict[str, int], engine_args: dict[int, Any]) -> None:
    async with running(engine_args=engine_args, stream={"chunk_frames": 1}) as orchestrator:
        others = [asyncio.create_task(collect(orchestrator, request(n, 50, step_s=0.002))) for n in (2, 3)]

        with pytest.raises(ServiceError) as caught:
            await asyncio.wait_for(collect(orchestrator, request(5, 10, **inputs)), SOON_S)

        assert type(caught.value) is ServiceError
        for seed, task in zip((2, 3), others, strict=True):
            assert np.array_equal(audio(await task), make_audio(seed, 50))
        await works(orchestrator)


@pytest.mark.parametrize("wait", [False, True], ids=["told at once", "waited for"])
@pytest.mark.parametrize("lost", [0, 2, 9], ids=["first", "middle", "last"])
async def test_chunk_dropped_between_stages(lost: int, wait: bool) -> None:
    """B12."""
    dropping = {"drop": lost, "drop_request": 0, "wait": wait}
    async with running(connector_options=dropping, stream={"chunk_frames": 1}) as orchestrator:
        expected = DeadlineError if wait else ServiceError

        with pytest.raises(expected):
            await asyncio.wait_for(collect(orchestrator, request(1, 10, timeout_s=1.0 if wait else 30.0)), SOON_S)

        await works(orchestrator)


@pytest.mark.parametrize("async_chunk", [True, False], ids=["chunks", "whole"])
async def test_client_gone_at_every_event(async_chunk: bool) -> None:
    """B14, B18."""
    async with running(
        async_chunk=async_chunk, stream={"chunk_frames": 1}, engine_args={0: {"max_num_seqs": 2}}
    ) as orchestrator:
        for taken in range(11):
            stream = orchestrator.submit(request(taken, 10, step_s=0.001))
            for _ in range(taken):
                await anext(stream, None)
            await cast("Any", stream).aclose()
        for turns in range(20):
            # Before its first output: after so many turns of the loop.
            task = asyncio.create_task(collect(orchestrator, request(turns, 10)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        await works(orchestrator)


# Many


async def test_a_thousand_aborts_leave_every_table_as_it_was() -> None:
    """B14."""
    limits = EngineOptions(max_queued_requests=2000)
    async with running(limits, stream={"chunk_frames": 1}, engine_args={0: {"max_num_seqs": 32}}) as orchestrator:
        await works(orchestrator)
        stages = [psutil.Process(pid) for pid in pids(orchestrator)]
        before = await descriptors(stages)
        gc.collect()
        own = psutil.Process().num_fds()
        rng = np.random.default_rng(0)
        kinds = rng.integers(0, 4, 1000)
        room = asyncio.Semaphore(100)

        async def one(seed: int) -> None:
            what = request(seed, 10**6, name=f"n{seed}", step_s=0.001, timeout_s=0.05 if kinds[seed] == 3 else 60.0)
            moment_s = float(rng.uniform(0, 0.05))
            async with room:
                if kinds[seed] == 0:
                    stream = orchestrator.submit(what)
                    await anext(stream)
                    await cast("Any", stream).aclose()
                    return
                task = asyncio.create_task(collect(orchestrator, what))
                if kinds[seed] == 1:
                    asyncio.get_running_loop().call_later(moment_s, task.cancel)
                elif kinds[seed] == 2:
                    asyncio.get_running_loop().call_later(moment_s, orchestrator.abort, f"n{seed}")
                await asyncio.wait({task})
                assert task.cancelled() or isinstance(task.exception(), (DeadlineError, NotFoundError))

        await asyncio.gather(*(one(seed) for seed in range(1000)))

        await works(orchestrator)
        assert pids(orchestrator) == [process.pid for process in stages]
        assert await descriptors(stages) == before
        gc.collect()
        assert psutil.Process().num_fds() == own
        assert not orchestrator._flights
        assert sorted(os.listdir(orchestrator.run_dir or "")) == ["stage0-talker.log", "stage1-vocoder.log"]
