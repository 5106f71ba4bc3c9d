"""How a level sends its requests, on a transport in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from omni_server.bench import level as level_module
from omni_server.bench.level import Level
from omni_server.bench.plan import MAX_REQUESTS, BenchPlan, Bounds, Load
from omni_server.bench.speech import DELIVERIES, SpeechEndpoint

pytestmark = pytest.mark.anyio
Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]
AUDIO = httpx.ByteStream(b"\0\x40" * 240)


def make_level(load: Load, bounds: Bounds, *, urls: tuple[str, ...] = ("http://a",), **changes: Any) -> Level:
    values = {"prompts": ("one", "two", "three"), "timeout_s": 30.0, **changes}
    plan = BenchPlan(urls=urls, loads=(load,), bounds=bounds, **values)
    return Level(plan, load, SpeechEndpoint(DELIVERIES["audio"]), seed=5)


async def run(level: Level, handler: Handler) -> None:
    transport = httpx.MockTransport(handler)
    clients = [httpx.AsyncClient(transport=transport, base_url=url) for url in level.plan.urls]
    async with asyncio.timeout(60):
        await level.run(clients)
    for client in clients:
        await client.aclose()


async def test_closed_loop_keeps_its_concurrency_and_no_more() -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            full.set()
        await full.wait()
        running -= 1
        return httpx.Response(200, stream=AUDIO)

    level = make_level(Load("closed", 4), Bounds(requests=25))
    await run(level, handler)

    assert most == 4
    assert [outcome.number for outcome in level.outcomes()] == list(range(25))
    assert level.complete
    assert level.unfinished == 0


async def test_open_loop_sends_without_waiting_for_answers() -> None:
    begun = 0
    all_begun = asyncio.Event()

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal begun
        begun += 1
        if begun == 12:
            all_begun.set()
        await all_begun.wait()  # a loop that waited for an answer would never come here a second time
        return httpx.Response(200, stream=AUDIO)

    level = make_level(Load("open", 200.0), Bounds(requests=12))
    await run(level, handler)

    outcomes = level.outcomes()
    assert len(outcomes) == 12
    assert all(outcome.digest.error is None and outcome.late_s >= 0 for outcome in outcomes)


async def test_two_servers_get_the_same_prompts_and_each_block_once() -> None:
    seen: dict[str, list[str]] = {"a": [], "b": []}

    async def handler(request: httpx.Request) -> httpx.Response:
        seen[request.url.host].append(json.loads(request.content)["input"])
        return httpx.Response(200, stream=AUDIO)

    level = make_level(Load("closed", 1), Bounds(requests=7), urls=("http://a", "http://b"))
    await run(level, handler)

    assert seen["a"] == seen["b"] == ["one", "two", "three"] * 2 + ["one"]
    outcomes = level.outcomes()
    assert sorted((outcome.block, outcome.server) for outcome in outcomes) == [(b, s) for b in range(7) for s in range(2)]
    assert {outcome.server for outcome in outcomes[::2]} == {0, 1}


async def test_the_duration_ends_a_closed_loop() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=AUDIO)

    level = make_level(Load("closed", 2), Bounds(duration_s=0.3))
    await run(level, handler)

    assert level.complete
    assert level.wall_s >= 0.3
    assert 0 < level.sent < MAX_REQUESTS
    assert len(level.outcomes()) == level.sent


async def test_failures_of_the_exchange_are_outcomes() -> None:
    kinds = iter([httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.UnsupportedProtocol("odd")])

    async def handler(request: httpx.Request) -> httpx.Response:
        raise next(kinds)

    level = make_level(Load("closed", 1), Bounds(requests=3))
    await run(level, handler)

    assert [outcome.digest.error for outcome in level.outcomes()] == ["connect", "cut off", "transport"]


async def test_an_answer_that_does_not_end_is_a_timeout() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    level = make_level(Load("closed", 1), Bounds(requests=2), timeout_s=0.01)
    await run(level, handler)

    assert [outcome.digest.error for outcome in level.outcomes()] == ["timeout", "timeout"]


async def test_an_answer_that_is_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_server.bench.exchange.MAX_BODY_BYTES", 100)

    async def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=AUDIO)

    level = make_level(Load("closed", 1), Bounds(requests=1))
    await run(level, handler)

    assert level.outcomes()[0].digest.error == "too long"


async def test_what_ended_before_an_interrupt_stays() -> None:
    stalled = asyncio.Event()

    async def handler(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["input"] == "three":
            stalled.set()
            await asyncio.Event().wait()
        return httpx.Response(200, stream=AUDIO)

    level = make_level(Load("closed", 1), Bounds(requests=9))
    task = asyncio.create_task(run(level, handler))
    async with asyncio.timeout(30):
        await stalled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(level.outcomes()) == 2
    assert level.unfinished == 1
    assert not level.complete
    assert level.wall_s > 0


async def test_answers_beyond_the_bound_on_memory_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_module, "HELD_BYTES", 1000)

    async def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=AUDIO)

    level = make_level(Load("closed", 2), Bounds(requests=10))
    await run(level, handler)

    assert len(level._outcomes) >= 8  # read before anyone asked
    assert [outcome.digest.measures["audio_s"] for outcome in level.outcomes()] == pytest.approx([0.01] * 10)
