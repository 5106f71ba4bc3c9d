"""The orchestrator with real stage processes, of fakes that need neither torch nor vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest

from omni_core.engine import orchestrator as orchestrator_module
from omni_core.engine.options import EngineOptions, LbPolicy
from omni_core.engine.orchestrator import Orchestrator
from omni_core.errors import (
    DeadlineError,
    NotFoundError,
    OmniError,
    OverloadedError,
    RequestError,
    ServiceError,
    StageDeadError,
    StageStartError,
)
from omni_core.platforms import Platform
from omni_core.request import OmniOutput, OmniRequest
from omni_core.stage import RestartPolicy
from omni_core.testing.fakes import SAMPLE_RATE, make_audio
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.running import audio, collect, loads, pids, request, running, states, until_empty
from omni_core.testing.waiting import all_gone, async_wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("async_chunk", [True, False], ids=["chunks", "whole"])
async def test_request_goes_through_both_stages(async_chunk: bool) -> None:
    async with running(async_chunk=async_chunk) as orchestrator:
        outputs = await collect(orchestrator, request(7, 10))

        assert np.array_equal(audio(outputs), make_audio(7, 10))
        assert len(outputs) == (4 if async_chunk else 1)
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        last = outputs[-1]
        assert (last.request_id, last.finish_reason, last.sample_rate) == ("r7", "stop", SAMPLE_RATE)
        assert last.metrics["frames"] == 10
        assert last.metrics["duration_s"] >= last.metrics["ttfa_s"] > 0


async def test_first_chunk_comes_long_before_the_last_with_async_chunk() -> None:
    """E12."""
    async with running(stream={"chunk_frames": 1}) as orchestrator:
        outputs = orchestrator.submit(request(1, 10**6, step_s=0.001))

        first = await anext(outputs)

        assert not first.finished
        await cast("Any", outputs).aclose()


@pytest.mark.parametrize("async_chunk", [True, False], ids=["chunks", "whole"])
async def test_concurrent_requests_never_mix(async_chunk: bool) -> None:
    async with running(async_chunk=async_chunk) as orchestrator:
        counts = [1, 2, 3, 17, 40, 41, 42, 5]

        results = await asyncio.gather(
            *(collect(orchestrator, request(seed, count, step_s=0.001)) for seed, count in enumerate(counts))
        )

        for seed, (count, outputs) in enumerate(zip(counts, results, strict=True)):
            assert np.array_equal(audio(outputs), make_audio(seed, count))
        await until_empty(orchestrator)


async def test_equal_request_ids_do_not_meet() -> None:
    """B19."""
    async with running() as orchestrator:
        results = await asyncio.gather(*(collect(orchestrator, request(seed, 20, name="same")) for seed in (1, 2)))

        for seed, outputs in zip((1, 2), results, strict=True):
            assert np.array_equal(audio(outputs), make_audio(seed, 20))
            assert {output.request_id for output in outputs} == {"same"}


async def test_sampling_reaches_the_stage_and_a_limit_there_is_the_reason_of_the_end() -> None:
    async with running() as orchestrator:
        limited = OmniRequest("r", {"seed": 1, "count": 10}, sampling={0: {"max_tokens": 4}})

        outputs = await collect(orchestrator, limited)

        assert np.array_equal(audio(outputs), make_audio(1, 4))
        assert outputs[-1].finish_reason == "length"


async def test_two_final_stages_give_one_end() -> None:
    async with running(text_output=True) as orchestrator:
        outputs = await collect(orchestrator, request(3, 5))

        assert np.array_equal(audio(outputs), make_audio(3, 5))
        assert len("".join(output.data for output in outputs if output.type == "text").split()) == 5
        assert [output.finished for output in outputs].count(True) == 1
        assert outputs[-1].finished


async def test_request_that_wants_one_output_leaves_other_stages_alone() -> None:
    async with running(text_output=True) as orchestrator:
        outputs = await collect(orchestrator, OmniRequest("r", {"seed": 3, "count": 5}, outputs=frozenset({0})))

        assert {output.type for output in outputs} == {"text"}
        await until_empty(orchestrator)


# Failures of one request


@pytest.mark.parametrize(
    ("inputs", "kind", "text"),
    [
        ({"fail_at": 0}, RequestError, "the seed is unlucky"),
        ({"fail_at": 5}, RequestError, "the seed is unlucky"),
        ({"break_at": 5}, ServiceError, r"stage 0 \(talker\): KeyError: 'weights'"),
        ({"count": "many"}, ServiceError, "ValueError"),
    ],
    ids=["refused", "refused later", "unexpected error", "bad input"],
)
async def test_failing_request_ends_alone_with_its_error(inputs: dict[str, Any], kind: type[OmniError], text: str) -> None:
    """B23."""
    async with running() as orchestrator:
        other = asyncio.create_task(collect(orchestrator, request(2, 30, step_s=0.002)))

        with pytest.raises(kind, match=text) as caught:
            await collect(orchestrator, OmniRequest("bad", {"seed": 1, "count": 10, **inputs}))

        assert type(caught.value) is kind
        assert np.array_equal(audio(await other), make_audio(2, 30))
        await until_empty(orchestrator)


async def test_failure_in_the_last_stage_ends_only_the_culprit() -> None:
    poisoned = int(make_audio(5, 1)[0, 0]) - 5
    async with running(engine_args={1: {"poison": poisoned}}, stream={"chunk_frames": 1}) as orchestrator:
        results = await asyncio.gather(*(collect(orchestrator, request(seed, 4)) for seed in (5, 6, 8)), return_exceptions=True)

        assert isinstance(results[0], ServiceError)
        assert "stage 1 (vocoder): ArithmeticError: a poisoned code" in str(results[0])
        for seed, outputs in zip((6, 8), results[1:], strict=True):
            assert np.array_equal(audio(cast("list[OmniOutput]", outputs)), make_audio(seed, 4))
        await until_empty(orchestrator)


async def test_broken_hand_over_function_ends_the_request() -> None:
    async with running(hand_over="omni_core.testing.fakes:broken_hand_over") as orchestrator:
        with pytest.raises(ServiceError, match="hand-over to stage 1: IndexError: frame 3"):
            await collect(orchestrator, request())
        await until_empty(orchestrator)


@pytest.mark.parametrize("lost", [0, 1, 3], ids=["first", "middle", "last"])
async def test_lost_chunk_ends_the_request_and_the_next_one_works(lost: int) -> None:
    """B12."""
    async with running(connector_options={"drop": lost}) as orchestrator:
        with pytest.raises(ServiceError, match="is not there"):
            await collect(orchestrator, request(1, 10))

        if lost > 0:
            assert np.array_equal(audio(await collect(orchestrator, request(2, 2))), make_audio(2, 2))
        await until_empty(orchestrator)


async def test_deadline_ends_a_request_that_hangs_in_every_stage() -> None:
    """B12."""
    async with running() as orchestrator:
        with pytest.raises(DeadlineError, match=r"not finished within 0\.3 s"):
            await collect(orchestrator, request(1, 10, hang_at=6, timeout_s=0.3))

        await until_empty(orchestrator)


@pytest.mark.parametrize(
    ("inputs", "sampling", "param"),
    [
        ({"seed": object()}, {}, "prompt"),
        ({"seed": np.zeros(2000)}, {}, "prompt"),
        ({"seed": 1, "count": 1}, {0: {"extra_args": {"a": object()}}}, "sampling_params_list"),
    ],
    ids=["not data", "too large", "sampling not data"],
)
async def test_request_that_cannot_be_sent_is_refused_and_the_stage_lives(
    inputs: dict[str, Any], sampling: dict[int, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B23."""
    monkeypatch.setattr(orchestrator_module, "MAX_INPUT_BYTES", 10_000)
    async with running() as orchestrator:
        with pytest.raises(RequestError) as caught:
            await collect(orchestrator, OmniRequest("bad", inputs, sampling))

        assert caught.value.param == param
        assert orchestrator.health()["requests"] == 0
        assert np.array_equal(audio(await collect(orchestrator, request(2))), make_audio(2, 10))


# Aborts


@pytest.mark.parametrize("outputs_before", [0, 1, 3], ids=["before the first output", "after one", "after three"])
@pytest.mark.parametrize("async_chunk", [True, False], ids=["chunks", "whole"])
async def test_caller_that_goes_away_leaves_nothing(outputs_before: int, async_chunk: bool) -> None:
    """B14."""
    async with running(async_chunk=async_chunk) as orchestrator:
        count = 10**6 if async_chunk or outputs_before == 0 else 10

        async def read() -> None:
            async with contextlib.aclosing(cast("Any", orchestrator.submit(request(1, count, step_s=0.001)))) as outputs:
                for _ in range(outputs_before):
                    await anext(outputs, None)
                if outputs_before == 0:
                    await anext(outputs)

        reader = asyncio.create_task(read())
        if outputs_before == 0:
            await async_wait_until(lambda: orchestrator.health()["requests"] == 1, "the request's begin")
            reader.cancel()
        await asyncio.wait({reader}, timeout=20)

        assert reader.done()
        await until_empty(orchestrator)
        assert np.array_equal(audio(await collect(orchestrator, request(2))), make_audio(2, 10))


async def test_abort_by_id_ends_every_request_of_that_name() -> None:
    async with running() as orchestrator:
        tasks = [asyncio.create_task(collect(orchestrator, request(seed, 10**6, step_s=0.01, name="x"))) for seed in (1, 2)]
        await async_wait_until(lambda: orchestrator.health()["requests"] == 2, "both requests")

        assert orchestrator.abort("x")

        for task in tasks:
            with pytest.raises(NotFoundError, match="'x' was aborted"):
                await task
        assert not orchestrator.abort("x")
        await until_empty(orchestrator)


async def test_many_aborts_at_random_moments_leave_nothing() -> None:
    """B14."""
    async with running() as orchestrator:
        moments = np.random.default_rng(0).uniform(0, 0.05, 60)

        async def give_up(seed: int, after_s: float) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(collect(orchestrator, request(seed, 10**6, step_s=0.001)), after_s)

        await asyncio.gather(*(give_up(seed, float(after_s)) for seed, after_s in enumerate(moments)))

        await until_empty(orchestrator)
        assert np.array_equal(audio(await collect(orchestrator, request(2))), make_audio(2, 10))


# Windows


async def test_producer_is_held_back_by_a_caller_that_does_not_read() -> None:
    async with running(stream={"chunk_frames": 1, "max_inflight": 2}) as orchestrator:
        outputs = orchestrator.submit(request(1, 300))
        await anext(outputs)
        run_dir = Path(orchestrator.run_dir or "")

        # Windows: 64 outputs unread, 8 in the light runner, 2 on the edge. The talker would make 300 at once.
        await asyncio.sleep(0.5)
        assert len(list(run_dir.glob("*.payload"))) <= 2
        rest = [output async for output in outputs]

        assert len(rest) == 299
        assert rest[-1].finished


async def test_window_bounds_the_chunks_under_way() -> None:
    async with running(stream={"chunk_frames": 1, "max_inflight": 3}, engine_args={1: {"step_s": 0.02}}) as orchestrator:
        run_dir = Path(orchestrator.run_dir or "")
        await orchestrator.control.call(1, "pause", {"mode": "keep"}, 20)
        task = asyncio.create_task(collect(orchestrator, request(1, 30)))
        # One of the three is fetched, and the vocoder holds it.
        await async_wait_until(lambda: len(list(run_dir.glob("*.payload"))) == 2, "the window to be full")
        await orchestrator.control.call(1, "resume", {}, 20)
        most = 0
        while not task.done():
            most = max(most, len(list(run_dir.glob("*.payload"))))
            await asyncio.sleep(0.001)

        assert np.array_equal(audio(await task), make_audio(1, 30))
        assert most <= 3


# Death


async def test_killed_stage_ends_its_requests_and_no_others() -> None:
    """B09."""
    async with running(text_output=True) as orchestrator:
        with_audio = [asyncio.create_task(collect(orchestrator, request(n, 10**6, step_s=0.01))) for n in range(3)]
        text_only = asyncio.create_task(
            collect(orchestrator, OmniRequest("t", {"seed": 9, "count": 100, "step_s": 0.01}, outputs=frozenset({0})))
        )
        await async_wait_until(lambda: orchestrator.health()["requests"] == 4, "the requests")

        os.kill(orchestrator.health()["stages"][1]["pid"], signal.SIGKILL)

        for task in with_audio:
            with pytest.raises(StageDeadError, match=r"stage 1 \(vocoder\) is dead: it was ended by SIGKILL"):
                await asyncio.wait_for(task, 10)
        assert len(await text_only) == 100
        health = orchestrator.health()
        assert not health["healthy"]
        assert [stage["state"] for stage in health["stages"]] == ["ready", "dead"]
        with pytest.raises(StageDeadError):
            await asyncio.wait_for(collect(orchestrator, request(4)), 5)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [({"exit_at": 4}, "ended with exit code 9"), ({"die_at": 4}, "dead: the engine core is gone")],
    ids=["process", "engine"],
)
async def test_stage_that_dies_of_a_request_names_the_reason(inputs: dict[str, int], text: str) -> None:
    async with running() as orchestrator:
        other = asyncio.create_task(collect(orchestrator, request(2, 10**6, step_s=0.01)))
        await async_wait_until(lambda: orchestrator.health()["requests"] == 1, "the request")

        for task in (asyncio.create_task(collect(orchestrator, request(1, 10, **inputs))), other):
            with pytest.raises(StageDeadError, match=text):
                await asyncio.wait_for(task, 10)


async def test_other_replica_goes_on_when_one_dies() -> None:
    """B09."""
    async with running(EngineOptions(lb_policy=LbPolicy.ROUND_ROBIN), replicas={1: 2}) as orchestrator:
        tasks = [asyncio.create_task(collect(orchestrator, request(n, 400, step_s=0.01))) for n in range(4)]
        await async_wait_until(lambda: loads(orchestrator, "in_flight")[1:] == [2, 2], "requests on both replicas")

        os.kill(orchestrator.health()["stages"][1]["pid"], signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert [isinstance(result, StageDeadError) for result in results].count(True) == 2
        assert orchestrator.health()["healthy"]
        for seed in range(4):
            assert np.array_equal(audio(await collect(orchestrator, request(seed))), make_audio(seed, 10))


# Start and stop


@pytest.mark.parametrize("stage_id", [0, 1])
@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ({"fail": "no memory"}, ["ValueError: no memory", "raise ValueError"]),
        ({"fail_config": "it is cut short"}, ["ConfigError: model.safetensors: it is cut short", "download it again"]),
        ({"exit_code": 7}, ["ended with exit code 7 while it started"]),
    ],
    ids=["exception", "config error", "exit"],
)
async def test_stage_that_cannot_start_is_named_and_leaves_nothing(
    stage_id: int, how: dict[str, Any], texts: list[str], run_dirs: Callable[[], list[Path]]
) -> None:
    """B08."""
    other = {1 - stage_id: {"sleep_s": 600}}
    orchestrator = Orchestrator(fake_pipeline(engine_args={stage_id: how, **other}))

    with pytest.raises(StageStartError) as caught:
        await asyncio.wait_for(orchestrator.start(), 20)

    text = str(caught.value)
    assert f"stage {stage_id} (" in text
    for expected in texts:
        assert expected in text
    assert all_gone(_hosts(orchestrator))
    assert not run_dirs()


def _hosts(orchestrator: Orchestrator) -> list[psutil.Process]:
    found = []
    for stage in orchestrator.health()["stages"]:
        if stage["pid"] is not None:  # which is psutil's name for this process
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(stage["pid"]))
    return found


async def test_killed_stage_fails_the_start_at_once() -> None:
    """B08."""
    orchestrator = Orchestrator(fake_pipeline(engine_args={1: {"sleep_s": 600}}))
    starting = asyncio.create_task(orchestrator.start())
    await async_wait_until(lambda: any(s["pid"] for s in orchestrator.health()["stages"][1:]), "the process of stage 1")

    os.kill(orchestrator.health()["stages"][1]["pid"], signal.SIGKILL)

    with pytest.raises(StageStartError, match=r"stage 1 \(vocoder\) was ended by SIGKILL while it started"):
        await asyncio.wait_for(starting, 10)


async def test_a_stage_killed_while_another_one_still_loads_fails_the_start_at_once() -> None:
    orchestrator = Orchestrator(fake_pipeline(engine_args={1: {"sleep_s": 600}}))
    starting = asyncio.create_task(orchestrator.start())
    await async_wait_until(lambda: states(orchestrator)[:1] == ["ready"], "stage 0 to be ready")

    os.kill(pids(orchestrator)[0], signal.SIGKILL)

    with pytest.raises(StageStartError, match=r"stage 0 \(talker\) died before the others were ready: .* by SIGKILL"):
        await asyncio.wait_for(starting, 20)


async def test_a_stage_that_is_restarted_while_another_one_still_loads_does_not_fail_the_start() -> None:
    again = RestartPolicy("on-failure", backoff_s=0.05)
    orchestrator = Orchestrator(fake_pipeline(engine_args={1: {"sleep_s": 3}}, restart=again))
    starting = asyncio.create_task(orchestrator.start())
    await async_wait_until(lambda: states(orchestrator)[:1] == ["ready"], "stage 0 to be ready")

    os.kill(pids(orchestrator)[0], signal.SIGKILL)

    await asyncio.wait_for(starting, 30)
    try:
        await async_wait_until(lambda: states(orchestrator) == ["ready", "ready"], "stage 0 to be back")
        assert orchestrator.health()["stages"][0]["restarts"] == 1
    finally:
        await orchestrator.stop(0)


async def test_slow_stage_hits_its_own_timeout_and_is_named() -> None:
    """B07."""
    orchestrator = Orchestrator(fake_pipeline(engine_args={1: {"sleep_s": 600}}), EngineOptions(stage_init_timeout_s=5.0))

    with pytest.raises(StageStartError, match=r"stage 1 \(vocoder\) was not ready within 5 s"):
        await asyncio.wait_for(orchestrator.start(), 20)

    assert all_gone(_hosts(orchestrator))


async def test_init_timeout_names_every_late_stage() -> None:
    pipeline = fake_pipeline(engine_args={0: {"sleep_s": 600}, 1: {"sleep_s": 600}})

    with pytest.raises(StageStartError, match=r"0 \(talker\), 1 \(vocoder\) were not ready within 0\.5 s"):
        await asyncio.wait_for(Orchestrator(pipeline, EngineOptions(init_timeout_s=0.5)).start(), 20)


async def test_cancelled_start_leaves_nothing(run_dirs: Callable[[], list[Path]]) -> None:
    orchestrator = Orchestrator(fake_pipeline(engine_args={1: {"sleep_s": 600}}))
    starting = asyncio.create_task(orchestrator.start())
    await async_wait_until(lambda: any(s["pid"] for s in orchestrator.health()["stages"][1:]), "the process of stage 1")

    starting.cancel()
    await asyncio.wait({starting}, timeout=20)

    assert all_gone(_hosts(orchestrator))
    assert not run_dirs()


async def test_stop_lets_requests_finish_and_takes_no_new_ones() -> None:
    async with running() as orchestrator:
        task = asyncio.create_task(collect(orchestrator, request(1, 50, step_s=0.01)))
        await async_wait_until(lambda: orchestrator.health()["requests"] == 1, "the request")

        stopping = asyncio.create_task(orchestrator.stop(30))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await collect(orchestrator, request(2))

        assert np.array_equal(audio(await task), make_audio(1, 50))
        await stopping
        assert [stage["state"] for stage in orchestrator.health()["stages"]] == ["stopped", "stopped"]


async def test_stop_ends_requests_that_take_too_long() -> None:
    async with running() as orchestrator:
        task = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.01)))
        await async_wait_until(lambda: orchestrator.health()["requests"] == 1, "the request")

        await orchestrator.stop(0.1)
        await orchestrator.stop(0.1)

        with pytest.raises(ServiceError, match="the server stopped"):
            await task


async def test_engines_below_a_stage_are_told_its_start_timeout() -> None:
    """B07."""
    name = "OMNI_STAGE_INIT_TIMEOUT"
    async with running(EngineOptions(stage_init_timeout_s=25.5), engine_args={0: {"tell_env": [name]}}) as orchestrator:
        assert orchestrator._pools[0].replicas[0].process.facts[name] == "25.5"


async def test_environment_of_a_stage_stays_in_its_process() -> None:
    async with running(env={"OMNI_TEST_ONLY": "1"}) as orchestrator:
        for stage in orchestrator.health()["stages"]:
            assert stage["state"] == "ready"
        assert "OMNI_TEST_ONLY" not in os.environ


async def test_silent_stage_is_killed_and_its_requests_end() -> None:
    async with running(EngineOptions(stage_heartbeat_timeout_s=3)) as orchestrator:
        task = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.01)))
        await async_wait_until(lambda: orchestrator.health()["requests"] == 1, "the request")

        os.kill(orchestrator.health()["stages"][0]["pid"], signal.SIGSTOP)

        with pytest.raises(StageDeadError, match="it was silent for 3 s"):
            await asyncio.wait_for(task, 20)


async def test_spawned_stages_work_like_forked_ones() -> None:
    platform = Platform("fake", "fake", visible_devices_env="FAKE_VISIBLE_DEVICES", start_method="spawn")
    pipeline = fake_pipeline()
    stages = (dataclasses.replace(pipeline.stages[0], devices="3"), pipeline.stages[1])
    orchestrator = Orchestrator(dataclasses.replace(pipeline, stages=stages), platform=platform)
    await orchestrator.start()

    outputs = await collect(orchestrator, request(4))

    assert np.array_equal(audio(outputs), make_audio(4, 10))
    await orchestrator.stop(0)
