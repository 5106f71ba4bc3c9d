"""Pause, weights and sleep of an AR stage: a real engine core in its own process."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import RequestError, ServiceError, StageDeadError, UnsupportedError
from omni_core.runner import StageInput, StageOutput
from omni_core.testing.waiting import async_wait_until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    # vLLM's client leaves contexts of zmq to the garbage collector.
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function Context.__del__"),
]

INPUT = {"custom_process_input_func": "omni_core.testing.tiny_ar:TinyInput", "engine_output_type": "latent"}
RECEIVING = "omni_core.testing.weight_transfer:TinyTalker"
Rows = Callable[[int], np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()  # what a stopped engine leaves is collected under this module's filters, not in some later test


@pytest.fixture
async def make_runner(make_stage: Any) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts a runner; all are stopped at the end."""
    from omni_core.engine.ar.runner import ArRunner

    started: list[ArRunner] = []

    async def runner(*args: Any, **kwargs: Any) -> ArRunner:
        kwargs.setdefault("topology", INPUT)
        one = ArRunner(make_stage(*args, **kwargs))
        started.append(one)
        one.facts = await one.start()  # type: ignore[attr-defined]
        return one

    yield runner
    await asyncio.gather(*(one.stop() for one in started))


def request(runner: Any, name: str, rows: Any, **sampling: Any) -> StageInput:
    return StageInput(name, {"rows": rows}, {**runner.stage.sampling, **sampling})


async def frames(runner: Any, what: StageInput, begun: asyncio.Event | None = None) -> list[list[int]]:
    """Return a request's codes; `begun` is set when it has made some."""
    found: list[list[int]] = []
    output: StageOutput
    async for output in runner.run(what):
        found += output.tensors.get("codes", np.empty((0, 4))).tolist()
        if begun is not None:
            begun.set()
    return found


async def test_requests_that_a_pause_meets_go_on_as_if_it_had_not_been(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner()
    alone = await frames(runner, request(runner, "alone", rows_of(1), max_tokens=100))
    other = await frames(runner, request(runner, "other", rows_of(2)))
    begun = asyncio.Event()
    running = asyncio.create_task(frames(runner, request(runner, "a", rows_of(1), max_tokens=100), begun))
    await begun.wait()

    assert await runner.call("pause", {"mode": "keep"}) is True
    assert await runner.call("pause", {"mode": "keep"}) is False
    assert await runner.call("is_paused", {}) is True
    newcomer = asyncio.create_task(frames(runner, request(runner, "b", rows_of(2))))
    await runner.call("world_size", {})
    assert not running.done()
    assert not newcomer.done()
    assert await runner.call("resume", {}) is True

    assert await running == alone
    assert await newcomer == other


async def test_a_pause_lets_requests_end_or_ends_them_and_gives_up_in_time(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner("TinyGatedTalker")
    rows = rows_of(1)

    async def gated(name: str) -> asyncio.Task[list[list[int]]]:
        what = StageInput(name, {}, dict(runner.stage.sampling), streaming=True)
        begun = asyncio.Event()
        task = asyncio.create_task(frames(runner, what, begun))
        await asyncio.sleep(0)
        await runner.push(name, {"rows": rows[:7], "gated": True}, False)
        await begun.wait()
        return task

    async def finish(name: str) -> None:
        await runner.push(name, {"rows": rows[7:]}, False)
        await runner.push(name, {}, True)

    whole = await gated("whole")
    await finish("whole")

    waiting = await gated("waiting")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await runner.call("pause", {"mode": "wait"})
    assert await runner.call("is_paused", {}) is False
    pausing = asyncio.create_task(runner.call("pause", {"mode": "wait"}))
    await runner.call("is_paused", {})
    await finish("waiting")
    assert await pausing is True
    assert await waiting == await whole
    await runner.call("resume", {})

    aborted = await gated("aborted")
    assert await runner.call("pause", {"mode": "abort"}) is True
    with pytest.raises(ServiceError, match="ended the request when it was paused"):
        await aborted
    await runner.call("resume", {})
    again = await gated("again")
    await finish("again")
    assert await again == await whole


async def test_reloaded_weights_give_the_same_codes_also_for_requests_under_way(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner()
    before = await frames(runner, request(runner, "before", rows_of(1), max_tokens=100))
    begun = asyncio.Event()
    running = asyncio.create_task(frames(runner, request(runner, "during", rows_of(1), max_tokens=100), begun))
    await begun.wait()

    assert await runner.call("reload_weights", {}) is True

    assert await runner.call("is_paused", {}) is False
    assert await running == before
    assert await frames(runner, request(runner, "after", rows_of(1), max_tokens=100)) == before


async def test_the_prefix_cache_is_reset_under_way_only_if_requests_may_be_computed_again(
    make_runner: Any, rows_of: Rows
) -> None:
    runner = await make_runner()
    alone = await frames(runner, request(runner, "alone", rows_of(1), max_tokens=100))
    begun = asyncio.Event()
    running = asyncio.create_task(frames(runner, request(runner, "during", rows_of(1), max_tokens=100), begun))
    await begun.wait()
    await runner.call("pause", {})

    assert await runner.call("reset_prefix_cache", {}) is False
    assert await runner.call("reset_prefix_cache", {"reset_running_requests": True}) is True

    await runner.call("resume", {})
    assert await running == alone
    assert await runner.call("reset_prefix_cache", {}) is True


async def test_reloading_reads_what_the_checkpoint_holds_now(make_runner: Any, rows_of: Rows, tmp_path: Path) -> None:
    from omni_core.testing.tiny_ar import build_tiny_ar

    changing = build_tiny_ar(tmp_path / "changing", seed=0)
    other = build_tiny_ar(tmp_path / "other", seed=5)
    runner = await make_runner(model=str(changing))
    reference = await make_runner(model=str(other))
    wanted = await frames(reference, request(reference, "r", rows_of(1)))
    assert await frames(runner, request(runner, "before", rows_of(1))) != wanted

    shutil.copy(other / "model.safetensors", changing / "new")
    (changing / "new").rename(changing / "model.safetensors")
    await runner.call("reload_weights", {})

    assert await frames(runner, request(runner, "after", rows_of(1))) == wanted


async def test_weights_from_a_trainer_change_the_codes_and_their_version(
    make_runner: Any, rows_of: Rows, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    from omni_core.testing.tiny_ar import build_tiny_ar

    config = {"weight_transfer_config": {"backend": "folder"}}
    runner = await make_runner(architecture_target=RECEIVING, engine_args=config)
    trained = build_tiny_ar(tmp_path / "trained", seed=5)
    reference = await make_runner(model=str(trained))
    wanted = await frames(reference, request(reference, "r", rows_of(1), max_tokens=100))
    weights = load_file(trained / "model.safetensors")
    names = sorted(weights)
    save_file({name: weights[name] for name in names[:7]}, tmp_path / "part-0")
    save_file({name: weights[name] for name in names[7:]}, tmp_path / "part-1")
    assert await frames(runner, request(runner, "before", rows_of(1), max_tokens=100)) != wanted
    assert await runner.call("weight_version", {}) == "default"

    await runner.call("init_weight_transfer_engine", {"init_info": {"folder": str(tmp_path)}})
    with pytest.raises(RequestError, match="while the stage is paused only"):
        await runner.call("start_weight_update", {})
    begun = asyncio.Event()
    running = asyncio.create_task(frames(runner, request(runner, "during", rows_of(2), max_tokens=100), begun))
    await begun.wait()
    await runner.call("pause", {"mode": "keep"})
    await runner.call("start_weight_update", {})
    for part in ("part-0", "part-1"):
        await runner.call("update_weights", {"update_info": {"file": part}})
    await runner.call("finish_weight_update", {"weight_version": "step-7"})
    await runner.call("resume", {})

    assert len(await running) == 100
    assert await runner.call("weight_version", {}) == "step-7"
    assert await frames(runner, request(runner, "after", rows_of(1), max_tokens=100)) == wanted
    await runner.call("shutdown_weight_transfer_engine", {})
    await runner.call("update_weight_version", {"version": "step-8"})
    assert await runner.call("weight_version", {}) == "step-8"


async def test_what_an_ar_stage_cannot_do_here_is_refused_with_the_reason(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner()

    with pytest.raises(UnsupportedError, match="does nothing on the platform cpu"):
        await runner.call("sleep", {"level": 1})
    assert await runner.call("wake_up", {}) is False
    with pytest.raises(UnsupportedError, match="takes no weight updates"):
        await runner.call("init_weight_transfer_engine", {"init_info": {}})
    with pytest.raises(UnsupportedError, match="cannot fly"):
        await runner.call("fly", {})

    os.kill(runner.facts["core_pids"][0], signal.SIGKILL)
    await async_wait_until(lambda: runner._launched.llm.errored, "the client to notice the death")
    with pytest.raises(StageDeadError):
        await runner.call("weight_version", {})
