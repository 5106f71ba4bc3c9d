"""Replicas: which one a request gets, what the death of one costs, and how it comes back. Real processes."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from collections import Counter
from typing import Any, cast

import numpy as np
import psutil
import pytest

from omni_core.engine import replicas as replicas_module
from omni_core.engine.options import EngineOptions, LbPolicy, parse_lb_policy
from omni_core.engine.orchestrator import Orchestrator
from omni_core.engine.replicas import ReplicaPool
from omni_core.engine.stage_process import StageState
from omni_core.errors import ConfigError, StageDeadError, StageStartError
from omni_core.request import OmniRequest
from omni_core.stage import RestartPolicy
from omni_core.testing.fakes import make_audio
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.running import audio, collect, loads, pids, request, running, states, until_empty
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio

AGAIN = RestartPolicy("on-failure", backoff_s=0.05, max=3)


def options(policy: LbPolicy) -> EngineOptions:
    return EngineOptions(lb_policy=policy)


# The choice


class FakeProcess:
    """What the choice looks at."""

    def __init__(self, replica: int, *, has_room: bool = True) -> None:
        self.replica = replica
        self.in_flight = 0
        self.has_room = has_room


class FakeReplica:
    def __init__(self, process: FakeProcess, state: StageState = StageState.READY) -> None:
        self.process = process
        self.state = state


def pool_of(policy: LbPolicy, processes: list[FakeProcess]) -> Any:
    pool = cast("Any", ReplicaPool.__new__(ReplicaPool))
    pool.replicas = [FakeReplica(process) for process in processes]
    pool._policy, pool._random, pool._turn = policy, random.Random(0), 0
    return pool


def test_round_robin_takes_turns_and_leaves_out_the_full_and_the_dead() -> None:
    """DV-10."""
    processes = [FakeProcess(number) for number in range(4)]
    pool = pool_of(LbPolicy.ROUND_ROBIN, processes)

    first = [pool.choose().replica for _ in range(5)]
    processes[2].has_room = False
    pool.replicas[3].state = StageState.RESTARTING
    second = [pool.choose().replica for _ in range(4)]

    assert first == [0, 1, 2, 3, 0]
    assert second == [1, 0, 1, 0]


def test_least_queue_length_counts_what_was_just_given() -> None:
    """DV-10."""
    processes = [FakeProcess(number) for number in range(3)]
    processes[1].in_flight = 2
    pool = pool_of(LbPolicy.LEAST_QUEUE_LENGTH, processes)
    chosen = []

    for _ in range(7):
        process = pool.choose()
        process.in_flight += 1
        chosen.append(process.replica)

    assert Counter(chosen) == {0: 3, 1: 1, 2: 3}


def test_random_reaches_every_replica() -> None:
    """DV-10."""
    pool = pool_of(LbPolicy.RANDOM, [FakeProcess(number) for number in range(4)])

    assert {pool.choose().replica for _ in range(100)} == {0, 1, 2, 3}


def test_replicas_without_room_are_chosen_when_all_are_full() -> None:
    pool = pool_of(LbPolicy.ROUND_ROBIN, [FakeProcess(number, has_room=False) for number in range(2)])

    assert [pool.choose().replica for _ in range(3)] == [0, 1, 0]


def test_policies_have_names_and_random_is_the_default() -> None:
    assert EngineOptions().lb_policy is parse_lb_policy("random")
    with pytest.raises(ConfigError, match="least-queue-length"):
        parse_lb_policy("least-queue")


# Requests on replicas


@pytest.mark.parametrize("policy", list(LbPolicy))
async def test_request_keeps_its_replicas_for_all_its_chunks(policy: LbPolicy) -> None:
    """DV-10; a chunk at another replica would meet a state that has not seen the ones before, and sound wrong."""
    async with running(options(policy), replicas={0: 2, 1: 3}, stream={"chunk_frames": 1}) as orchestrator:
        counts = [40, 7, 23, 1, 60, 3, 3, 31]

        results = await asyncio.gather(
            *(collect(orchestrator, request(seed, count, step_s=0.001)) for seed, count in enumerate(counts))
        )

        for seed, (count, outputs) in enumerate(zip(counts, results, strict=True)):
            assert np.array_equal(audio(outputs), make_audio(seed, count))
        await until_empty(orchestrator)


async def test_least_queue_length_spreads_requests_evenly() -> None:
    async with running(options(LbPolicy.LEAST_QUEUE_LENGTH), replicas={0: 3}) as orchestrator:
        tasks = [asyncio.create_task(collect(orchestrator, request(n, 10**6, step_s=0.01))) for n in range(9)]
        await async_wait_until(lambda: orchestrator.health()["requests"] == 9, "the requests")

        assert [stage["in_flight"] for stage in orchestrator.health()["stages"][:3]] == [3, 3, 3]

        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await until_empty(orchestrator)


async def test_dead_replica_fails_only_its_own_requests_in_mid_stream() -> None:
    """B09."""
    async with running(options(LbPolicy.ROUND_ROBIN), replicas={0: 2}, stream={"chunk_frames": 1}) as orchestrator:
        tasks = [asyncio.create_task(collect(orchestrator, request(n, 200, step_s=0.005))) for n in range(4)]
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[2] == 4, "all requests in the second stage")

        os.kill(pids(orchestrator)[0], signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)

        failed = [isinstance(result, StageDeadError) for result in results]
        assert failed == [True, False, True, False]
        for seed in (1, 3):
            assert np.array_equal(audio(cast("Any", results[seed])), make_audio(seed, 200))
        assert orchestrator.health()["healthy"]
        await until_empty(orchestrator)


async def test_stage_without_replicas_costs_503_and_requests_that_never_touch_it_go_on() -> None:
    """B09."""
    async with running(text_output=True, replicas={1: 2}) as orchestrator:
        for pid in pids(orchestrator)[1:]:
            os.kill(pid, signal.SIGKILL)
        await async_wait_until(lambda: states(orchestrator) == ["ready", "dead", "dead"], "both deaths to be noticed")

        assert not orchestrator.health()["healthy"]
        with pytest.raises(StageDeadError, match="stage 1") as caught:
            await collect(orchestrator, request(1))
        text = await collect(orchestrator, OmniRequest("t", {"seed": 9, "count": 5}, outputs=frozenset({0})))

        assert caught.value.http_status == 503
        assert len(text) == 5


# Restart


@pytest.mark.parametrize("stage_id", [0, 1])
async def test_dead_replica_is_started_again_and_works(stage_id: int) -> None:
    async with running(restart=AGAIN) as orchestrator:
        task = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.01)))
        await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")
        old = pids(orchestrator)

        os.kill(old[stage_id], signal.SIGKILL)
        with pytest.raises(StageDeadError, match="SIGKILL"):
            await task
        assert states(orchestrator)[stage_id] == "restarting"
        assert not orchestrator.health()["healthy"]
        with pytest.raises(StageDeadError, match="being restarted"):
            await collect(orchestrator, request(2))
        await async_wait_until(lambda: orchestrator.health()["healthy"], "the stage to be back")

        assert np.array_equal(audio(await collect(orchestrator, request(3))), make_audio(3, 10))
        stage = orchestrator.health()["stages"][stage_id]
        assert (stage["state"], stage["restarts"], stage["reason"]) == ("ready", 1, "")
        assert stage["pid"] != old[stage_id]
        await until_empty(orchestrator)


async def test_restart_leaves_the_other_replicas_requests_alone() -> None:
    async with running(options(LbPolicy.ROUND_ROBIN), replicas={1: 2}, restart=AGAIN) as orchestrator:
        tasks = [asyncio.create_task(collect(orchestrator, request(n, 150, step_s=0.005))) for n in range(2)]
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[1:] == [1, 1], "a request on each replica")

        os.kill(pids(orchestrator)[1], signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)

        failed = [isinstance(result, StageDeadError) for result in results]
        assert sorted(failed) == [False, True]
        survivor = failed.index(False)
        assert np.array_equal(audio(cast("Any", results[survivor])), make_audio(survivor, 150))
        assert orchestrator.health()["healthy"]
        await async_wait_until(lambda: states(orchestrator) == ["ready"] * 3, "the replica to be back")
        for seed in range(4):
            assert np.array_equal(audio(await collect(orchestrator, request(seed))), make_audio(seed, 10))


async def test_replica_that_dies_again_and_again_stays_dead_after_the_last_restart() -> None:
    async with running(restart=RestartPolicy("on-failure", backoff_s=0.01, max=2)) as orchestrator:
        for restarts in (1, 2):
            os.kill(pids(orchestrator)[1], signal.SIGKILL)
            await async_wait_until(
                lambda wanted=restarts: orchestrator.health()["stages"][1]["restarts"] == wanted, "the restart to begin"
            )
            await async_wait_until(lambda: states(orchestrator) == ["ready", "ready"], "the stage to be back")

        os.kill(pids(orchestrator)[1], signal.SIGKILL)

        await async_wait_until(lambda: states(orchestrator)[1] == "dead", "the stage to be given up")
        stage = orchestrator.health()["stages"][1]
        assert (stage["restarts"], stage["reason"]) == (2, "it was ended by SIGKILL")
        with pytest.raises(StageDeadError, match="restart the server"):
            await collect(orchestrator, request(2))


async def test_replica_that_ran_long_enough_begins_its_count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "STABLE_S", 0.0)
    async with running(restart=RestartPolicy("on-failure", backoff_s=0.01, max=1)) as orchestrator:
        for restarts in (1, 2, 3):
            os.kill(pids(orchestrator)[0], signal.SIGKILL)
            await async_wait_until(
                lambda wanted=restarts: orchestrator.health()["stages"][0]["restarts"] == wanted, "the restart to begin"
            )
            await async_wait_until(lambda: states(orchestrator) == ["ready", "ready"], "the stage to be back")


async def test_restart_that_fails_tells_why_and_is_tried_again(short_tmp: str) -> None:
    broken = os.path.join(short_tmp, "broken")
    async with running(restart=RestartPolicy("on-failure", 0.01, 2), engine_args={1: {"fail_if": broken}}) as orchestrator:
        with open(broken, "w"):
            os.kill(pids(orchestrator)[1], signal.SIGKILL)
            await async_wait_until(lambda: states(orchestrator)[1] == "dead", "both restarts to fail")

        stage = orchestrator.health()["stages"][1]
        assert stage["restarts"] == 2
        assert "stage 1 (vocoder) did not start: ValueError: " in stage["reason"]


async def test_stop_ends_a_restart_that_is_under_way() -> None:
    async with running(restart=RestartPolicy("on-failure", backoff_s=600)) as orchestrator:
        os.kill(pids(orchestrator)[1], signal.SIGKILL)
        await async_wait_until(lambda: states(orchestrator)[1] == "restarting", "the restart")

        await asyncio.wait_for(orchestrator.stop(0), 20)

        assert states(orchestrator) == ["stopped", "stopped"]


async def test_start_that_fails_is_not_a_death_to_recover_from() -> None:
    orchestrator = Orchestrator(fake_pipeline(restart=AGAIN, engine_args={1: {"fail": "no memory"}}))

    with pytest.raises(StageStartError, match="no memory"):
        await asyncio.wait_for(orchestrator.start(), 20)

    assert [stage["restarts"] for stage in orchestrator.health()["stages"]] == [0, 0]


async def test_restarts_leave_no_descriptor_open_and_no_file_but_the_last_log() -> None:
    async with running(restart=RestartPolicy("on-failure", backoff_s=0.01, max=10)) as orchestrator:
        gc.collect()
        before = psutil.Process().num_fds()

        for restarts in range(1, 5):
            os.kill(pids(orchestrator)[1], signal.SIGKILL)
            await async_wait_until(
                lambda wanted=restarts: orchestrator.health()["stages"][1]["restarts"] == wanted, "the restart to begin"
            )
            await async_wait_until(lambda: states(orchestrator) == ["ready", "ready"], "the stage to be back")

        assert psutil.Process().num_fds() == before
        assert sorted(os.listdir(orchestrator.run_dir or "")) == ["stage0-talker.log", "stage1-vocoder.4.log"]
