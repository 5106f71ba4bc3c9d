"""Pause, sleep and new weights of a light stage."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.engine.light_runner import LightRunner
from omni_core.errors import ConfigError, RequestError, ServiceError, UnsupportedError
from omni_core.runner import StageInput, StageOutput
from omni_core.testing.fakes import SumVocoder
from omni_core.testing.pipelines import fake_pipeline

pytestmark = pytest.mark.anyio


async def start(platform: str = "cuda", **engine_args: Any) -> tuple[LightRunner, SumVocoder]:
    runner = LightRunner(replace(fake_pipeline(engine_args={1: engine_args}).stages[1], platform=platform))
    await runner.start()
    assert isinstance(runner.model, SumVocoder)
    return runner, runner.model


async def opened(runner: LightRunner, request_id: str) -> asyncio.Task[list[StageOutput]]:
    async def collect() -> list[StageOutput]:
        return [output async for output in runner.run(StageInput(request_id, {}, {}, streaming=True))]

    task = asyncio.create_task(collect())
    await asyncio.sleep(0)
    return task


def codes(*values: int) -> dict[str, Any]:
    return {"codes": np.array(values), "seed": 0}


def steps(model: SumVocoder) -> int:
    return [what for what, _ in model.log].count("step")


async def drained(runner: LightRunner) -> None:
    """Let the runner compute whatever it may."""
    for _ in range(5):
        await asyncio.sleep(0)
        await runner.in_worker(lambda: None)


async def test_a_paused_stage_keeps_its_requests_and_goes_on_where_they_were() -> None:
    runner, model = await start()
    outputs = await opened(runner, "a")
    await runner.push("a", codes(1), False)

    assert await runner.call("pause", {"mode": "keep"}) is True
    assert await runner.call("pause", {"mode": "keep"}) is False
    assert await runner.call("is_paused", {}) is True
    pushed = asyncio.create_task(runner.push("a", codes(2), True))
    newcomer = await opened(runner, "b")
    pushed_too = asyncio.create_task(runner.push("b", codes(5), True))
    await drained(runner)
    assert steps(model) == 1
    assert not pushed.done()
    assert not pushed_too.done()

    assert await runner.call("resume", {}) is True
    assert await runner.call("resume", {}) is False

    assert [output.tensors["audio"][0, 0] for output in await outputs] == [1, 3]
    assert [output.tensors["audio"][0, 0] for output in await newcomer] == [5]
    await runner.stop()


async def test_a_pause_that_waits_lets_begun_requests_end_and_begins_no_other() -> None:
    runner, model = await start()
    begun = await opened(runner, "a")
    await runner.push("a", codes(1), False)

    pausing = asyncio.create_task(runner.call("pause", {"mode": "wait"}))
    newcomer = await opened(runner, "b")
    pushed = asyncio.create_task(runner.push("b", codes(5), True))
    await drained(runner)
    assert not pausing.done()
    await runner.push("a", codes(2), True)

    assert await pausing is True
    assert len(await begun) == 2
    assert not pushed.done()
    assert ("begin", "b") not in model.log
    await runner.call("resume", {})
    assert len(await newcomer) == 1
    await runner.stop()


async def test_a_pause_that_waits_too_long_leaves_the_stage_as_it_was() -> None:
    runner, _ = await start()
    begun = await opened(runner, "a")
    await runner.push("a", codes(1), False)
    newcomer = await opened(runner, "b")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await runner.call("pause", {"mode": "wait"})

    await runner.push("b", codes(5), True)
    assert len(await newcomer) == 1
    await runner.abort("a")
    await begun
    await runner.stop()


async def test_a_pause_that_aborts_fails_the_requests_and_takes_later_ones_when_it_is_over() -> None:
    runner, model = await start()
    outputs = await opened(runner, "a")
    await runner.push("a", codes(1), False)

    assert await runner.call("pause", {"mode": "abort"}) is True

    with pytest.raises(ServiceError, match="was paused and its requests were aborted"):
        await outputs
    later = await opened(runner, "b")
    pushed = asyncio.create_task(runner.push("b", codes(5), True))
    await drained(runner)
    assert steps(model) == 1
    await runner.call("resume", {})
    await pushed
    assert len(await later) == 1
    await runner.stop()
    assert ("end", "a") in model.log


async def test_a_sleeping_stage_computes_nothing_until_it_is_awake() -> None:
    runner, model = await start()
    assert await runner.call("wake_up", {}) is False
    outputs = await opened(runner, "a")
    await runner.push("a", codes(1), False)

    assert await runner.call("sleep", {"level": 1}) is True
    assert await runner.call("sleep", {"level": 1}) is False
    pushed = asyncio.create_task(runner.push("a", codes(2), True))
    await drained(runner)
    assert not pushed.done()
    for method in ("resume", "reload_weights"):
        with pytest.raises(RequestError, match="asleep"):
            await runner.call(method, {})

    assert await runner.call("wake_up", {}) is True

    assert [output.tensors["audio"][0, 0] for output in await outputs] == [1, 3]
    assert [what for what, _ in model.log if what in ("sleep", "wake")] == ["sleep", "wake"]
    await runner.stop()


async def test_a_stage_on_a_cpu_and_a_model_that_cannot_say_so_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _ = await start("cpu")
    with pytest.raises(UnsupportedError, match="in the host's memory already"):
        await runner.call("sleep", {"level": 1})
    await runner.stop()

    def refuse(self: SumVocoder) -> None:
        raise UnsupportedError("this model cannot give up its device's memory")

    monkeypatch.setattr(SumVocoder, "sleep", refuse)
    runner, _ = await start()
    with pytest.raises(UnsupportedError, match="this model cannot"):
        await runner.call("sleep", {"level": 1})
    with pytest.raises(UnsupportedError, match="cannot start_weight_update"):
        await runner.call("start_weight_update", {})
    outputs = await opened(runner, "a")
    await runner.push("a", codes(1), True)
    assert len(await outputs) == 1
    await runner.stop()


async def test_new_weights_are_read_between_two_steps_and_old_ones_stay_where_that_fails(tmp_path: Path) -> None:
    gain = tmp_path / "gain"
    gain.write_text("1")
    runner, _ = await start(gain=str(gain))
    outputs = await opened(runner, "a")
    await runner.push("a", codes(1), False)

    gain.write_text("10")
    assert await runner.call("reload_weights", {}) is True
    await runner.push("a", codes(2), False)
    gain.unlink()
    with pytest.raises(ConfigError, match="the gain is not there"):
        await runner.call("reload_weights", {})
    await runner.push("a", codes(3), True)

    assert [output.tensors["audio"][0, 0] for output in await outputs] == [1, 30, 60]
    await runner.stop()
