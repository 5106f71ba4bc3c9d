from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from omni_core.engine.light_dispatch import DispatchGate
from omni_core.engine.light_runner import LightRunner
from omni_core.errors import ConfigError
from omni_core.runner import StageInput, StageOutput
from omni_core.testing.fakes import SumVocoder
from omni_core.testing.pipelines import fake_pipeline


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still until a test moves it."""

    now = 100.0

    def time(self) -> float:
        return self.now


def run(test: Callable[[ManualLoop], Awaitable[None]]) -> None:
    """Run a test on a loop of its own whose time it moves itself."""

    async def call() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ManualLoop)
        await test(loop)

    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        runner.run(call())


class Stage:
    """A light runner with requests that are open and send rows when told."""

    def __init__(self, loop: ManualLoop, rows: int, wait_ms: float, **engine_args: Any) -> None:
        options = {"dispatch_max_rows": rows, "dispatch_max_wait_ms": wait_ms}
        self._loop = loop
        self._runner = LightRunner(fake_pipeline(engine_args={1: {"additional_config": options, **engine_args}}).stages[1])
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self, *requests: str) -> None:
        await self._runner.start()
        for name in requests:
            self._tasks.append(asyncio.create_task(self._collect(name)))
        await asyncio.sleep(0)

    async def _collect(self, name: str) -> list[StageOutput]:
        return [output async for output in self._runner.run(StageInput(name, {}, {}, streaming=True))]

    async def send(self, name: str) -> None:
        """Send a request's next row; do not wait for its result."""
        self._tasks.append(asyncio.create_task(self._runner.push(name, {"codes": np.array([1]), "seed": 0}, False)))
        await asyncio.sleep(0)

    async def steps(self, *, after_ms: float = 0.0) -> list[list[str]]:
        """Let time pass; return which requests shared each step until now, whatever was due being done."""
        self._loop.now += after_ms / 1000
        for _ in range(10):
            await asyncio.sleep(0)
            await self._runner.in_worker(lambda: None)
        model = self._runner.model
        assert isinstance(model, SumVocoder)
        return [names for what, names in model.log if what == "step"]

    async def stop(self) -> None:
        await self._runner.stop()
        await asyncio.gather(*self._tasks)


def test_rows_start_together_when_enough_are_there_and_no_time_has_passed() -> None:
    async def test(loop: ManualLoop) -> None:
        stage = Stage(loop, rows=3, wait_ms=6)
        await stage.start("a", "b", "c")

        await stage.send("a")
        await stage.send("b")
        assert await stage.steps() == []
        await stage.send("c")

        assert await stage.steps() == [["a", "b", "c"]]
        await stage.stop()

    run(test)


def test_rows_start_when_the_first_has_waited_long_enough() -> None:
    async def test(loop: ManualLoop) -> None:
        stage = Stage(loop, rows=16, wait_ms=6)
        await stage.start("a", "b")

        await stage.send("a")
        assert await stage.steps(after_ms=4) == []
        await stage.send("b")
        assert await stage.steps(after_ms=1.9) == []

        assert await stage.steps(after_ms=0.1) == [["a", "b"]]
        await stage.stop()

    run(test)


def test_the_time_begins_anew_behind_each_step() -> None:
    async def test(loop: ManualLoop) -> None:
        stage = Stage(loop, rows=2, wait_ms=6)
        await stage.start("a", "b")
        await stage.send("a")
        await stage.steps(after_ms=6)

        await stage.send("a")
        assert await stage.steps(after_ms=5) == [["a"]]
        await stage.send("b")

        assert await stage.steps() == [["a"], ["a", "b"]]
        await stage.stop()

    run(test)


def test_several_rows_of_one_request_count_once() -> None:
    async def test(loop: ManualLoop) -> None:
        stage = Stage(loop, rows=2, wait_ms=6)
        await stage.start("a")

        for _ in range(3):
            await stage.send("a")
        assert await stage.steps(after_ms=5) == []

        assert await stage.steps(after_ms=1) == [["a"]] * 3  # the others came as early as the first
        await stage.stop()

    run(test)


def test_nobody_waits_for_more_rows_than_a_step_takes() -> None:
    async def test(loop: ManualLoop) -> None:
        stage = Stage(loop, rows=16, wait_ms=6, max_num_seqs=2)
        await stage.start("a", "b")

        await stage.send("a")
        await stage.send("b")

        assert await stage.steps() == [["a", "b"]]
        await stage.stop()

    run(test)


def test_an_aborted_request_is_no_longer_waited_for_or_computed() -> None:
    async def test(loop: ManualLoop) -> None:
        stage = Stage(loop, rows=2, wait_ms=6)
        await stage.start("a", "b")
        await stage.send("a")
        await stage.steps(after_ms=5)

        await stage._runner.abort("a")
        await stage.send("b")
        assert await stage.steps(after_ms=1) == []

        assert await stage.steps(after_ms=5) == [["b"]]
        await stage.stop()

    run(test)


def test_without_options_a_row_starts_at_once() -> None:
    async def test(loop: ManualLoop) -> None:
        runner = LightRunner(fake_pipeline().stages[1])
        await runner.start()

        outputs = [output async for output in runner.run(StageInput("a", {"codes": np.array([1]), "seed": 0}, {}))]

        assert len(outputs) == 1
        await runner.stop()

    run(test)


@pytest.mark.parametrize(
    ("rows", "waited_ms", "expected_ms"),
    [(1, 0, 6), (15, 5, 1), (16, 0, 0), (40, 0, 0), (1, 6, 0), (1, 60, 0)],
)
def test_delay_is_what_is_left_of_the_firsts_time(rows: int, waited_ms: float, expected_ms: float) -> None:
    gate = DispatchGate(16, 0.006)

    assert gate.delay(rows, 10.0, 10.0 + waited_ms / 1000) == pytest.approx(expected_ms / 1000, abs=1e-9)


def test_a_model_beats_the_stages_options() -> None:
    stage = fake_pipeline(engine_args={1: {"additional_config": {"dispatch_max_rows": 4, "dispatch_max_wait_ms": 9}}}).stages[1]
    model = SumVocoder()
    assert DispatchGate.of(model, stage, 64) == DispatchGate(4, 0.009)

    model.dispatch_max_rows, model.dispatch_max_wait_ms = 16, 6

    assert DispatchGate.of(model, stage, 64) == DispatchGate(16, 0.006)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dispatch_max_rows": 0}, "dispatch_max_rows must be a whole number of at least 1, not 0"),
        ({"dispatch_max_rows": 1.5}, "not 1.5"),
        ({"dispatch_max_rows": True}, "not True"),
        ({"dispatch_max_wait_ms": -1}, "dispatch_max_wait_ms must be a number of milliseconds of at least 0, not -1"),
        ({"dispatch_max_wait_ms": float("nan")}, "not nan"),
        ({"dispatch_max_wait_ms": "6"}, "not '6'"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, Any], message: str) -> None:
    stage = fake_pipeline(engine_args={1: {"additional_config": options}}).stages[1]

    with pytest.raises(ConfigError, match=message) as error:
        DispatchGate.of(SumVocoder(), stage, 64)

    assert error.value.where == "stage 1 (vocoder), additional_config"
