"""A pipeline whose stages are started one by one: real stage processes, a head and workers in this one, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omni_core.engine.meeting import Meeting
from omni_core.engine.options import EngineOptions, LbPolicy
from omni_core.engine.orchestrator import Orchestrator
from omni_core.engine.remote import head as head_module
from omni_core.engine.remote import worker as worker_module
from omni_core.engine.remote.worker import Worker
from omni_core.engine.stage_process import StageState
from omni_core.errors import ConfigError, DeadlineError, OmniError, StageDeadError, StageStartError
from omni_core.stage import RestartPolicy
from omni_core.testing.fakes import make_audio
from omni_core.testing.hosts import FACTS, hosts
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.running import audio, collect, loads, request, states
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entered: set[str] = set()
    enter = Meeting.enter

    def note(group: str, address: str) -> Meeting:
        meeting = enter(group, address)
        entered.add(meeting.path)
        return meeting

    monkeypatch.setattr(Meeting, "enter", note)
    yield
    assert entered
    assert not [path for path in entered if os.path.exists(path)]


async def healthy(orchestrator: Orchestrator) -> None:
    await async_wait_until(lambda: orchestrator.health()["healthy"], "every stage to be ready")


async def speaks(orchestrator: Orchestrator, seed: int = 1) -> None:
    heard = audio(await collect(orchestrator, request(seed, 10)))
    np.testing.assert_array_equal(heard, make_audio(seed, 10))


async def stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def stage_pid(worker: Worker) -> int:
    replica = worker.seats[0]._replica
    assert replica is not None
    return replica.process.pid or 0


async def until_ready(worker: Worker) -> None:
    await async_wait_until(lambda: worker.seats and worker.seats[0].state is StageState.READY, "the worker's stage")


async def test_worker_first_then_the_head() -> None:
    """SB-01, SB-07: the order does not matter."""
    async with hosts() as place:
        place.run(place.worker())
        async with place.head() as orchestrator:
            await speaks(orchestrator)


async def test_head_first_then_the_worker() -> None:
    """SB-01, SB-07."""
    async with hosts() as place:
        orchestrator = place.orchestrator()
        starting = asyncio.create_task(orchestrator.start())
        await async_wait_until(lambda: orchestrator.health()["stages"], "the head to wait")
        place.run(place.worker())

        await starting
        await speaks(orchestrator)
        await orchestrator.stop(0)


async def test_head_without_a_stage_of_its_own() -> None:
    """SB-02: `--stage-id none`."""
    async with hosts() as place:
        place.run(place.worker(0))
        place.run(place.worker(1))
        async with place.head(own=frozenset()) as orchestrator:
            await speaks(orchestrator)


async def test_request_under_way_fails_at_once_when_its_worker_goes_and_the_next_worker_restores_service() -> None:
    """SB-08, B11: it fails fast, the stage leaves /health, and a worker that registers again is used with no head restart."""
    async with hosts() as place:
        first = place.run(place.worker())
        async with place.head() as orchestrator:
            running = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.01)))
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")

            await stop(first)
            with pytest.raises(StageDeadError, match="its worker was stopped") as lost:
                await asyncio.wait_for(running, 10)
            assert "when a worker for the stage is there" in lost.value.hint
            health = orchestrator.health()
            assert not health["healthy"]
            assert health["stages"][1]["reason"] == "its worker was stopped"
            with pytest.raises(StageDeadError, match=r"stage 1 \(vocoder\) is dead"):
                await collect(orchestrator, request(2, 10))

            place.run(place.worker())
            await healthy(orchestrator)
            await speaks(orchestrator)
            assert orchestrator.health()["stages"][1]["restarts"] == 1


async def test_head_restart_keeps_the_workers_stage_loaded_and_forgets_its_requests() -> None:
    """Workers register again with a head that comes back; their stage is not loaded again."""
    async with hosts() as place:
        worker = place.worker()
        place.run(worker)
        async with place.head() as orchestrator:
            running = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.01)))
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")
            pid = stage_pid(worker)
        with pytest.raises(OmniError, match="stopped"):
            await running

        async with place.head() as orchestrator:
            await speaks(orchestrator, 2)
            await async_wait_until(lambda: loads(orchestrator)[1] == 0, "the old request to be forgotten")
            assert stage_pid(worker) == pid


async def test_worker_that_loses_its_connection_keeps_its_stage_loaded_whoever_notices_first() -> None:
    async with hosts() as place:
        worker = place.worker()
        place.run(worker)
        async with place.head() as orchestrator:
            pid = stage_pid(worker)
            seat = orchestrator._pools[1].replicas[0].process
            assert seat._channel is not None
            seat._channel._reader._transport.pause_reading()  # type: ignore[union-attr]
            link = worker.seats[0]._link
            assert link is not None
            link.channel._writer.close()

            await async_wait_until(lambda: orchestrator._pools[1].replicas[0].process is not seat, "the worker to be back")
            await healthy(orchestrator)

            assert stage_pid(worker) == pid
            assert states(orchestrator) == ["ready", "ready"]
            await speaks(orchestrator)


async def test_worker_starts_its_stage_again_where_another_head_meets_elsewhere() -> None:
    """Connectors of a stage find each other in the folder of their head, so a stage that is in another one is started anew."""
    async with hosts() as place:
        worker = place.worker()
        place.run(worker)
        async with place.head():
            pid = stage_pid(worker)
            meeting = worker.seats[0]._meeting
            assert meeting is not None
        other_head = Meeting.found(meeting.group, "127.0.0.1")

        async with place.head() as orchestrator:
            await speaks(orchestrator)
            assert stage_pid(worker) != pid
        other_head.leave()


async def test_worker_leaves_when_the_head_is_gone_for_good() -> None:
    """SB-09: no worker stays behind."""
    async with hosts() as place:
        worker = place.worker(head_timeout_s=2.0)
        task = place.run(worker)
        async with place.head():
            pid = stage_pid(worker)

        with pytest.raises(DeadlineError, match="found no head"):
            await asyncio.wait_for(task, 30)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_two_workers_of_one_stage_share_its_requests_and_one_may_go() -> None:
    """SB-08: a second worker gets a fresh replica and joins the pool."""
    async with hosts() as place:
        first = place.run(place.worker())
        async with place.head(limits=EngineOptions(lb_policy=LbPolicy.ROUND_ROBIN)) as orchestrator:
            place.run(place.worker())
            await async_wait_until(lambda: states(orchestrator) == ["ready"] * 3, "the second worker")
            used: set[int] = set()
            for seed in range(2):
                running = asyncio.create_task(collect(orchestrator, request(seed, 10**6, step_s=0.005)))
                await async_wait_until(lambda: sum(loads(orchestrator, "in_flight")[1:]) == 1, "the request")
                used.add(loads(orchestrator, "in_flight").index(1, 1))
                await stop(running)
            for seed in range(4):
                await speaks(orchestrator, seed)

            assert [replica.process.name for replica in orchestrator._pools[1].replicas] == [
                "1 (vocoder)",
                "1 (vocoder) replica 1",
            ]
            await stop(first)
            await async_wait_until(lambda: "dead" in states(orchestrator), "the first worker to go")
            assert orchestrator.health()["healthy"]
            await speaks(orchestrator)

    assert used == {1, 2}


async def test_one_worker_may_bring_several_replicas() -> None:
    """SB-06: `--omni-dp-size-local`."""
    async with hosts(fake_pipeline(replicas={1: 2})) as place:
        place.run(place.worker())
        async with place.head() as orchestrator:
            await async_wait_until(lambda: states(orchestrator) == ["ready"] * 3, "both replicas")
            facts = [replica.process.facts for replica in orchestrator._pools[1].replicas]
            await speaks(orchestrator)

    assert len(facts) == 2


async def test_killed_stage_process_ends_the_worker_which_says_why() -> None:
    """SB-09: a worker ends with its engine."""
    async with hosts() as place:
        worker = place.worker()
        task = place.run(worker)
        async with place.head() as orchestrator:
            os.kill(stage_pid(worker), signal.SIGKILL)

            with pytest.raises(StageDeadError, match="SIGKILL"):
                await asyncio.wait_for(task, 20)
            await async_wait_until(lambda: states(orchestrator)[1] == "dead", "the head to notice")
            assert "SIGKILL" in orchestrator.health()["stages"][1]["reason"]


async def test_restart_policy_holds_in_a_worker() -> None:
    policy = RestartPolicy("on-failure", backoff_s=0.05, max=3)
    async with hosts(fake_pipeline(restart=policy)) as place:
        worker = place.worker()
        place.run(worker)
        async with place.head() as orchestrator:
            pid = stage_pid(worker)
            os.kill(pid, signal.SIGKILL)
            await async_wait_until(lambda: not orchestrator.health()["healthy"], "the head to notice")

            await healthy(orchestrator)
            assert stage_pid(worker) != pid
            await speaks(orchestrator)


async def test_stage_that_cannot_start_is_reported_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    async with hosts(fake_pipeline(engine_args={1: {"fail_config": "the weights are cut off"}})) as place:
        orchestrator = place.orchestrator(limits=EngineOptions(init_timeout_s=30.0))
        starting = asyncio.create_task(orchestrator.start())
        task = place.run(place.worker())

        with pytest.raises(StageStartError, match="the weights are cut off"):
            await asyncio.wait_for(task, 30)
        await async_wait_until(lambda: states(orchestrator)[1] == "dead", "the head to hear of it")
        assert "the weights are cut off" in orchestrator.health()["stages"][1]["reason"]
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def test_head_whose_stage_nobody_brings_says_how_to_start_it() -> None:
    """SB-07: the start is bounded, and E32 names stage, seconds and flag."""
    async with hosts() as place:
        orchestrator = place.orchestrator(limits=EngineOptions(stage_init_timeout_s=2.0))

        with pytest.raises(StageStartError, match=r"stage 1 \(vocoder\) was not ready within 2 s: no worker") as late:
            await orchestrator.start()

    assert "omni serve MODEL --headless --stage-id 1" in late.value.hint
    assert "--stage-init-timeout" in late.value.hint


async def test_silent_worker_is_lost(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """SB-08: a host that is gone without a word is noticed by its silence."""
    async with hosts() as place:
        place.run(place.worker())
        async with place.head(heartbeat_timeout_s=1.0) as orchestrator:
            monkeypatch.setattr(worker_module, "BEAT_S", 3600.0)
            # The stage's own news would be heard, too.
            monkeypatch.setattr(worker_module.Seat, "_pass_on", lambda *_: None)

            await async_wait_until(lambda: not orchestrator.health()["healthy"], "the silence to be noticed")
    assert "stage 1 (vocoder) is dead: it was silent for 1 s" in caplog.text


async def test_worker_with_another_deployment_ends_and_the_head_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """SB-04: the reason is told on both sides."""
    async with hosts() as place:
        place.run(place.worker())
        async with place.head() as orchestrator:
            wrong = place.run(place.worker(facts={**FACTS, "deploy file.async_chunk": "other"}))

            with pytest.raises(ConfigError, match=r"differs from the head's in deploy file.async_chunk"):
                await asyncio.wait_for(wrong, 20)
            await speaks(orchestrator)
    assert "differs from the head's in deploy file.async_chunk" in caplog.text


async def test_lost_stage_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """SB-11: the hint comes back when a worker is lost later."""
    monkeypatch.setattr(head_module, "FIRST_HINT_S", 0.05)
    monkeypatch.setattr(head_module, "HINT_S", 0.05)
    async with hosts() as place:
        task = place.run(place.worker())
        async with place.head():
            caplog.clear()
            caplog.set_level(logging.WARNING)
            await stop(task)

            await async_wait_until(lambda: "no worker runs stage 1" in caplog.text, "the hint")


async def test_a_paused_stage_is_paused_in_a_worker_that_registers_later_and_one_that_left_hinders_no_call() -> None:
    async with hosts() as place:
        place.run(place.worker())
        async with place.head() as orchestrator:
            await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20.0)
            second = place.run(place.worker())
            await async_wait_until(lambda: states(orchestrator) == ["ready"] * 3, "the second worker")

            assert await orchestrator.control.call(1, "is_paused", {}, 20.0) == [True, True]
            await stop(second)
            await async_wait_until(lambda: "dead" in states(orchestrator), "the second worker to go")
            await orchestrator.control.call(1, "resume", {}, 20.0)
            await speaks(orchestrator)


async def test_no_worker_joins_a_stage_whose_weights_a_trainer_changed() -> None:
    async with hosts() as place:
        place.run(place.worker(0))
        async with place.head(own=frozenset({1})) as orchestrator:
            await orchestrator.control.call(0, "start_weight_update", {}, 20.0)

            with pytest.raises(ConfigError, match="a trainer changed the weights of this stage"):
                await asyncio.wait_for(place.run(place.worker(0)), 30)


async def test_operators_calls_reach_a_remote_stage() -> None:
    async with hosts() as place:
        place.run(place.worker(0))
        async with place.head(own=frozenset({1})) as orchestrator:
            answers: list[Any] = await orchestrator.control.call(0, "echo", {"value": 3}, 20.0)

    assert answers == [{"replica": 0, "value": 3}]


# A head that is started again


async def test_a_head_that_is_started_again_knows_that_a_workers_stage_is_paused_and_resumes_it() -> None:
    """A worker's stage outlives the head that paused it; the next one has to treat it as paused, also for workers to come."""
    async with hosts() as place:
        worker = place.worker()
        place.run(worker)
        async with place.head() as orchestrator:
            await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20.0)
            pid = stage_pid(worker)

        async with place.head(limits=EngineOptions(stall_timeout_s=2.0)) as orchestrator:
            assert stage_pid(worker) == pid
            assert orchestrator.control.paused == {1}
            running = asyncio.create_task(collect(orchestrator, request(1, 10)))
            place.run(place.worker())
            await async_wait_until(lambda: states(orchestrator) == ["ready"] * 3, "the second worker")
            assert await orchestrator.control.call(1, "is_paused", {}, 20.0) == [True, True]
            await asyncio.sleep(2.5)
            assert not running.done(), "held back is not stalled"

            assert await orchestrator.control.call(1, "resume", {}, 20.0) == [True, True]

            np.testing.assert_array_equal(audio(await running), make_audio(1, 10))
            assert orchestrator.control.paused == set()


async def test_what_this_heads_operators_have_said_counts_more_than_what_a_worker_remembers() -> None:
    """A worker that was away while its stage was resumed does not hold requests back for ever."""
    async with hosts() as place:
        worker = place.worker()
        place.run(worker)
        place.run(place.worker())
        async with place.head() as orchestrator:
            await async_wait_until(lambda: states(orchestrator) == ["ready"] * 3, "both workers")
            await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20.0)
            await stop(place.tasks[1])
            await async_wait_until(lambda: "dead" in states(orchestrator), "the second worker to go")
            await orchestrator.control.call(1, "resume", {}, 20.0)
            link = worker.seats[0]._link
            assert link is not None
            worker.seats[0]._memory.orders.note("pause", {"mode": "keep"})  # as if it had not heard of the resume

            link.channel._writer.close()

            await async_wait_until(lambda: worker.seats[0]._link not in (None, link), "the worker to be back")
            await healthy(orchestrator)
            assert await orchestrator.control.call(1, "is_paused", {}, 20.0) == [False]
            assert worker.seats[0]._memory.orders.told == {}
            await speaks(orchestrator)


async def test_a_head_that_is_started_again_knows_of_weights_that_a_trainer_changed() -> None:
    async with hosts() as place:
        place.run(place.worker(0))
        async with place.head(own=frozenset({1})) as orchestrator:
            await orchestrator.control.call(0, "finish_weight_update", {"weight_version": "step-7"}, 20.0)

        async with place.head(own=frozenset({1})) as orchestrator:
            assert orchestrator.control.weights(0) == "step-7"
            with pytest.raises(ConfigError, match="a trainer changed the weights of this stage"):
                await asyncio.wait_for(place.run(place.worker(0)), 30)


# A worker that leaves


async def test_worker_that_leaves_finishes_what_runs_and_takes_nothing_new(caplog: pytest.LogCaptureFixture) -> None:
    """SIGTERM to a worker is no loss: its requests end as ever, and its stage says that it leaves."""
    caplog.set_level(logging.INFO)
    async with hosts() as place:
        worker = place.worker()
        task = place.run(worker)
        async with place.head() as orchestrator:
            running = asyncio.create_task(collect(orchestrator, request(1, 60, step_s=0.02)))
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")

            worker.leave()
            await async_wait_until(lambda: states(orchestrator)[1] == "leaving", "the head to hear of it")

            health = orchestrator.health()
            assert not health["healthy"]
            assert "stops, and finishes the requests that it has" in health["stages"][1]["reason"]
            with pytest.raises(StageDeadError, match=r"stage 1 \(vocoder\) takes no new requests") as refused:
                await collect(orchestrator, request(2, 10))
            assert refused.value.http_status == 503
            assert not running.done()
            np.testing.assert_array_equal(audio(await running), make_audio(1, 60))
            await asyncio.wait_for(task, 30)
            await async_wait_until(lambda: states(orchestrator)[1] == "stopped", "the head to see it go")
            assert "was stopped" in orchestrator.health()["stages"][1]["reason"]
            assert "is dead" not in caplog.text
            assert "stage 1 (vocoder) has left" in caplog.text

            place.run(place.worker())
            await healthy(orchestrator)
            await speaks(orchestrator)


async def test_request_that_was_taken_in_before_still_finds_the_stage_that_leaves() -> None:
    async with hosts() as place:
        worker = place.worker()
        task = place.run(worker)
        async with place.head() as orchestrator:
            running = asyncio.create_task(collect(orchestrator, request(1, 4, step_s=0.5)))
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 0], "the request in the first stage")

            worker.leave()
            await async_wait_until(lambda: states(orchestrator)[1] == "leaving", "the head to hear of it")
            assert loads(orchestrator, "in_flight") == [1, 0]

            np.testing.assert_array_equal(audio(await running), make_audio(1, 4))
            await asyncio.wait_for(task, 30)


async def test_worker_without_requests_leaves_at_once_whatever_it_is_doing() -> None:
    async with hosts() as place:
        nowhere, ready = place.worker(), place.worker()
        asking = place.run(nowhere)
        await async_wait_until(lambda: nowhere.seats, "the worker to ask for its head")
        nowhere.leave()
        await asyncio.wait_for(asking, 30)

        task = place.run(ready)
        async with place.head():
            await until_ready(ready)
            ready.leave()

            await asyncio.wait_for(task, 30)


async def test_worker_that_leaves_one_of_two_replicas_leaves_the_other_its_stage() -> None:
    async with hosts() as place:
        first = place.worker()
        task = place.run(first)
        async with place.head() as orchestrator:
            place.run(place.worker())
            await async_wait_until(lambda: states(orchestrator) == ["ready"] * 3, "the second worker")
            running = [asyncio.create_task(collect(orchestrator, request(seed, 40, step_s=0.02))) for seed in range(4)]
            await async_wait_until(lambda: sum(loads(orchestrator, "in_flight")[1:]) == 4, "the requests")

            first.leave()
            await async_wait_until(lambda: states(orchestrator)[1] == "leaving" or task.done(), "the head to hear of it")

            assert orchestrator.health()["healthy"]
            await speaks(orchestrator, 9)
            for seed, outputs in enumerate(await asyncio.gather(*running)):
                np.testing.assert_array_equal(audio(outputs), make_audio(seed, 40))
            await asyncio.wait_for(task, 30)


async def test_worker_whose_head_goes_while_it_leaves_does_not_wait_for_another() -> None:
    async with hosts() as place:
        worker = place.worker(head_timeout_s=600.0)
        task = place.run(worker)
        async with place.head() as orchestrator:
            running = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.01)))
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")
            worker.leave()
            await async_wait_until(lambda: states(orchestrator)[1] == "leaving", "the head to hear of it")

        with pytest.raises(OmniError, match="stopped"):
            await running
        await asyncio.wait_for(task, 30)


async def test_paused_stage_of_a_worker_that_leaves_can_be_resumed() -> None:
    async with hosts() as place:
        worker = place.worker()
        task = place.run(worker)
        async with place.head() as orchestrator:
            await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20.0)
            running = asyncio.create_task(collect(orchestrator, request(1, 10)))
            await async_wait_until(lambda: loads(orchestrator, "in_flight")[1] == 1, "the request in the second stage")
            worker.leave()
            await async_wait_until(lambda: states(orchestrator)[1] == "leaving", "the head to hear of it")

            await orchestrator.control.call(1, "resume", {}, 20.0)

            np.testing.assert_array_equal(audio(await running), make_audio(1, 10))
            await asyncio.wait_for(task, 30)
