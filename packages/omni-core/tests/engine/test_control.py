"""Calls of operators to stages in real processes: answers, faults, deadlines, dead stages."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from omni_core.engine.control import Control
from omni_core.engine.messages import Call, Reply
from omni_core.engine.options import EngineOptions
from omni_core.engine.orchestrator import Orchestrator
from omni_core.engine.stage_process import StageState
from omni_core.errors import DeadlineError, NotFoundError, RequestError, ServiceError, StageDeadError, UnsupportedError
from omni_core.stage import RestartPolicy
from omni_core.testing.fakes import make_audio
from omni_core.testing.running import audio, collect, loads, pids, request, running, until_empty
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio


async def test_a_call_is_answered_by_every_replica_in_their_order() -> None:
    async with running(replicas={0: 2}) as orchestrator:
        answers = await orchestrator.control.call(0, "echo", {"value": [1, "two", None]}, 20)

        assert answers == [{"replica": 0, "value": [1, "two", None]}, {"replica": 1, "value": [1, "two", None]}]


async def test_what_a_stage_cannot_do_or_will_not_take_is_its_callers_error() -> None:
    async with running() as orchestrator:
        with pytest.raises(UnsupportedError, match="this stage cannot fly") as caught:
            await orchestrator.control.call(0, "fly", {}, 20)
        assert caught.value.http_status == 501
        assert caught.value.where == "stage 0 (talker)"
        with pytest.raises(ServiceError, match="KeyError: 'echo'"):
            await orchestrator.control.call(0, "break", {}, 20)
        with pytest.raises(ServiceError, match="TypeError"):
            await orchestrator.control.call(0, "answer_badly", {}, 20)
        with pytest.raises(RequestError, match="cannot be sent"):
            await orchestrator.control.call(0, "echo", {"value": object()}, 20)
        with pytest.raises(NotFoundError, match="no stage 7") as missing:
            await orchestrator.control.call(7, "echo", {}, 20)
        assert missing.value.hint == "the stages are 0, 1"

        assert audio(await collect(orchestrator, request())).tolist() == make_audio(1, 10).tolist()


async def test_a_call_that_never_ends_fails_at_its_deadline_and_the_next_one_is_answered() -> None:
    async with running() as orchestrator:
        with pytest.raises(DeadlineError, match=r"wait took longer than 0\.2 s"):
            await orchestrator.control.call(0, "wait", {}, 0.2)

        assert await orchestrator.control.call(0, "echo", {"value": 1}, 20) == [{"replica": 0, "value": 1}]


async def test_two_calls_to_one_stage_are_done_one_after_the_other_and_those_to_others_beside_them() -> None:
    async with running(EngineOptions()) as orchestrator:
        first = asyncio.create_task(orchestrator.control.call(0, "append", {"value": "a", "after_s": 0.3}, 20))
        await asyncio.sleep(0)
        second = asyncio.create_task(orchestrator.control.call(0, "append", {"value": "b"}, 20))
        waiting = asyncio.create_task(orchestrator.control.call(0, "echo", {"value": 1}, 0.05))

        assert await orchestrator.control.call(1, "is_paused", {}, 20) == [False]
        with pytest.raises(DeadlineError):
            await waiting
        assert [await first, await second] == [[["a"]], [["a", "b"]]]


async def test_a_call_to_a_stage_that_dies_fails_at_once_and_so_do_later_ones() -> None:
    async with running() as orchestrator:
        call = asyncio.create_task(orchestrator.control.call(0, "wait", {}, 600))
        await async_wait_until(lambda: bool(orchestrator.control._waiting), "the call to be sent")

        os.kill(pids(orchestrator)[0], signal.SIGKILL)

        with pytest.raises(StageDeadError, match="SIGKILL"):
            async with asyncio.timeout(20):
                await call
        with pytest.raises(StageDeadError):
            await orchestrator.control.call(0, "echo", {"value": 1}, 600)


async def test_a_call_ends_when_the_server_stops() -> None:
    async with running() as orchestrator:
        call = asyncio.create_task(orchestrator.control.call(0, "wait", {}, 600))
        await async_wait_until(lambda: bool(orchestrator.control._waiting), "the call to be sent")

    with pytest.raises(ServiceError, match="the server stopped"):
        await call


async def test_a_paused_stage_loses_nothing_and_is_not_taken_for_a_stalled_one() -> None:
    async with running(EngineOptions(stall_timeout_s=2.0)) as orchestrator:
        assert await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20) == [True]
        requests = [asyncio.create_task(collect(orchestrator, request(seed))) for seed in range(4)]
        late = asyncio.create_task(collect(orchestrator, request(9, timeout_s=3.0)))
        with pytest.raises(DeadlineError, match=r"not finished within 3 s"):
            await late
        assert not any(task.done() for task in requests)

        assert await orchestrator.control.call(1, "resume", {}, 20) == [True]

        for seed, outputs in enumerate(await asyncio.gather(*requests)):
            assert audio(outputs).tolist() == make_audio(seed, 10).tolist()
        await until_empty(orchestrator)


async def test_a_stage_that_goes_on_has_all_its_time_before_it_counts_as_stalled() -> None:
    async with running(EngineOptions(stall_timeout_s=10.0)) as orchestrator:
        stuck = asyncio.create_task(collect(orchestrator, request(1, 10, hang_at=0)))
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[0] == 1, "the request")
        (flight,) = orchestrator._flights.values()
        await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20)
        flight.moved -= 100.0  # so long it was paused

        await orchestrator.control.call(1, "resume", {}, 20)
        orchestrator._watch(flight)  # and the timer runs out before the stage has done anything

        assert not flight.ended
        stuck.cancel()
        await asyncio.wait({stuck})


class Answering:
    """A stage's process that answers every call at once, and dies of the one named `dies_of`."""

    def __init__(self, dies_of: str = "") -> None:
        self.stage = SimpleNamespace(stage_id=1)
        self.state = StageState.READY
        self.name = "1 (vocoder)"
        self.control = Control({1: cast("Any", SimpleNamespace(members=[SimpleNamespace(state=self.state, process=self)]))})
        self.heard: list[tuple[str, bool]] = []
        """The calls, and whether the stage counted as paused as each came."""
        self._dies_of = dies_of

    def post(self, call: Call) -> None:
        self.heard.append((call.method, 1 in self.control.paused))
        self.control.take(cast("Any", self), Reply(call.call_id, True))
        if call.method == self._dies_of:
            self.state = StageState.DEAD

    def dead_error(self) -> StageDeadError:
        return StageDeadError("stage 1 (vocoder) is dead")


async def test_a_stage_counts_as_paused_until_it_has_said_that_it_goes_on() -> None:
    """To wake up may take longer than a stage may be silent."""
    process = Answering()

    for method in ("sleep", "is_paused", "wake_up"):
        await process.control.call(1, method, {}, 20)

    assert process.heard == [("sleep", True), ("is_paused", True), ("wake_up", True)]
    assert process.control.paused == set()


async def test_a_replica_that_goes_with_its_last_answer_is_not_back() -> None:
    process = Answering(dies_of="pause")
    process.control._remember(1, "pause", {"mode": "keep"}, None)

    with pytest.raises(StageDeadError):
        await process.control.bring_back(cast("Any", process))


AGAIN = RestartPolicy("on-failure", backoff_s=0.05)


async def _kill_and_wait(orchestrator: Orchestrator, stage_id: int) -> None:
    restarts = orchestrator.health()["stages"][stage_id]["restarts"]
    os.kill(pids(orchestrator)[stage_id], signal.SIGKILL)
    await async_wait_until(
        lambda: orchestrator.health()["stages"][stage_id]["restarts"] > restarts and orchestrator.health()["healthy"],
        "the stage to be back",
    )


async def test_a_paused_replica_that_restarts_comes_back_paused() -> None:
    async with running(restart=AGAIN) as orchestrator:
        await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20)

        await _kill_and_wait(orchestrator, 1)

        assert await orchestrator.control.call(1, "is_paused", {}, 20) == [True]
        waiting = asyncio.create_task(collect(orchestrator, request(3)))
        await orchestrator.control.call(1, "resume", {}, 20)
        assert audio(await waiting).tolist() == make_audio(3, 10).tolist()
        await _kill_and_wait(orchestrator, 1)
        assert await orchestrator.control.call(1, "is_paused", {}, 20) == [False]


async def test_a_replica_that_has_lost_a_trainers_weights_stays_dead_and_says_why() -> None:
    async with running(restart=AGAIN, replicas={0: 2}) as orchestrator:
        await orchestrator.control.call(0, "start_weight_update", {}, 20)

        os.kill(pids(orchestrator)[0], signal.SIGKILL)

        await async_wait_until(lambda: orchestrator.health()["stages"][0]["state"] == "dead", "the replica to be given up")
        assert orchestrator.health()["stages"][0]["reason"] == (
            "it was ended by SIGKILL, and it is not restarted: its weights came from a trainer and went with it"
        )
        # The other one has them, and works on.
        assert audio(await collect(orchestrator, request(4))).tolist() == make_audio(4, 10).tolist()


async def test_weights_that_were_read_again_are_those_of_a_restarted_replica() -> None:
    async with running(restart=AGAIN) as orchestrator:
        await orchestrator.control.call(0, "start_weight_update", {}, 20)
        await orchestrator.control.call(0, "reload_weights", {}, 20)

        await _kill_and_wait(orchestrator, 0)


async def test_an_update_that_was_refused_hinders_no_restart() -> None:
    async with running(restart=AGAIN) as orchestrator:
        with pytest.raises(UnsupportedError):
            await orchestrator.control.call(1, "start_weight_update", {}, 20)

        await _kill_and_wait(orchestrator, 1)
