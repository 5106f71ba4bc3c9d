"""The numbers of requests through real stage processes, of fakes that need neither torch nor vLLM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from omni_core.engine.options import EngineOptions
from omni_core.engine.orchestrator import Orchestrator
from omni_core.engine.stage_process import StageState
from omni_core.errors import (
    ConfigError,
    DeadlineError,
    NotFoundError,
    OmniError,
    OverloadedError,
    RequestError,
    ServiceError,
    StageDeadError,
)
from omni_core.observe import series
from omni_core.observe.health import STATES, read_health
from omni_core.observe.registry import Registry
from omni_core.observe.requests import REASONS, RequestMetrics, error_reason
from omni_core.observe.stats_line import StatsLine
from omni_core.testing.fakes import SAMPLE_RATE, SAMPLES_PER_CODE
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.running import collect, request
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio

CODES = 6
"""Codes of a good request; three go into a chunk."""


@contextlib.asynccontextmanager
async def observed(limits: EngineOptions | None = None, **options: Any) -> AsyncIterator[tuple[Orchestrator, RequestMetrics]]:
    metrics = RequestMetrics(Registry())
    orchestrator = Orchestrator(fake_pipeline(**options), limits, observer=metrics)
    await orchestrator.start()
    try:
        yield orchestrator, metrics
    finally:
        await orchestrator.stop(0)


async def give_up(orchestrator: Orchestrator, seed: int) -> None:
    """Leave a request after its first output."""
    outputs = orchestrator.submit(request(seed, 10**6, step_s=0.001))
    await anext(outputs)
    await cast("Any", outputs).aclose()


def ends(registry: Registry) -> dict[str, float]:
    """Return the reasons for which requests ended, and how often."""
    return {reason: count for reason in REASONS if (count := registry.get(series.REQUESTS, reason=reason))}


def _told(registry: Registry, codes: int) -> bool:
    """Whether both stages have told what they count last of so many codes; each does so with its own heartbeat."""
    put = registry.get(series.TRANSFER_BYTES, stage="0", replica="0", peer="1", operation="put")
    seconds = registry.get(series.AUDIO_SECONDS, stage="1", replica="0")
    return min(round(put / 8), round(seconds * SAMPLE_RATE / SAMPLES_PER_CODE)) >= codes


def _held(registry: Registry) -> float:
    """Return how many payloads the ends of the edge held at their last heartbeat."""
    return registry.total(series.IN_FLIGHT)


async def test_every_end_is_counted_once_with_its_reason() -> None:
    """B26: ten good requests, three aborted ones, an invalid one."""
    async with observed() as (orchestrator, metrics):
        registry = metrics.registry
        await asyncio.gather(*(collect(orchestrator, request(seed, CODES)) for seed in range(10)))
        await asyncio.gather(*(give_up(orchestrator, seed) for seed in range(3)))
        with pytest.raises(RequestError):
            await collect(orchestrator, request(1, CODES, fail_at=0))

        assert ends(registry) == {"stop": 10, "abort": 3, "invalid": 1}
        now = read_health(orchestrator.health())
        assert (now.get(series.REQUESTS_RUNNING), now.get(series.REQUESTS_WAITING)) == (0, 0)
        for what in (series.REQUEST_SECONDS, series.QUEUE_SECONDS, series.FIRST_OUTPUT_SECONDS):
            assert registry.get(what) > 0
        assert registry.count(series.REQUEST_SECONDS) == 10
        assert registry.count(series.QUEUE_SECONDS) == 14
        assert registry.count(series.FIRST_OUTPUT_SECONDS) == 13
        assert registry.total(series.ABORTS, cause="abort") >= 3
        assert metrics.tracked == 0


async def test_stages_send_what_they_measure() -> None:
    """B26: the token counts equal the known numbers of codes."""
    async with observed() as (orchestrator, metrics):
        registry = metrics.registry
        await asyncio.gather(*(collect(orchestrator, request(seed, CODES)) for seed in range(10)))
        codes = 10 * CODES
        first, second = {"stage": "0", "replica": "0"}, {"stage": "1", "replica": "0"}

        await async_wait_until(lambda: _told(registry, codes) and not _held(registry), "both stages to tell their numbers")

        assert registry.get(series.TOKENS, **first) == codes
        assert registry.get(series.AUDIO_SECONDS, **second) == pytest.approx(codes * SAMPLES_PER_CODE / SAMPLE_RATE)
        assert registry.get(series.TOKENS, **second) == 0
        assert registry.get(series.BATCH_SIZE, **second) == 20
        assert 1 <= registry.count(series.STEP_SECONDS, **second) <= 20
        assert registry.get(series.RESIDENT_BYTES, **first, process="host") > 1 << 20

        edge = {"from_stage": "0", "to_stage": "1"}
        assert registry.get(series.CHUNKS, **edge) == 20
        assert registry.count(series.CHUNK_SECONDS, **edge) == 20
        for labels, peer, operation in ((first, "1", "put"), (second, "0", "get")):
            transfer = {**labels, "peer": peer, "operation": operation}
            assert registry.count(series.TRANSFER_SECONDS, **transfer) == 20
            assert registry.get(series.TRANSFER_BYTES, **transfer) == codes * 8
            assert registry.get(series.IN_FLIGHT, **transfer) == 0


async def test_replicas_are_told_apart_and_a_dead_one_keeps_its_counts_only() -> None:
    async with observed(EngineOptions(), replicas={0: 2}) as (orchestrator, metrics):
        registry = metrics.registry
        await asyncio.gather(*(collect(orchestrator, request(seed, CODES)) for seed in range(20)))
        await async_wait_until(
            lambda: registry.total(series.TOKENS, stage="0") == 20 * CODES, "the stages to tell their numbers"
        )
        both = [registry.get(series.TOKENS, stage="0", replica=replica) for replica in "01"]
        assert all(both)

        with pytest.raises(ServiceError):
            await collect(orchestrator, request(1, CODES, exit_at=0))

        dead = next(stage["replica"] for stage in orchestrator.health()["stages"] if stage["state"] == "dead")
        assert registry.get(series.TOKENS, stage="0", replica=str(dead)) == both[dead]
        assert registry.get(series.RESIDENT_BYTES, stage="0", replica=str(dead), process="host") == 0
        assert ends(registry) == {"stop": 20, "stage_dead": 1}
        now = read_health(orchestrator.health())
        assert now.get(series.STAGE_READY, stage="0", replica=str(dead)) == 0
        assert now.get(series.STAGE_STATE, stage="0", replica=str(dead), state="dead") == 1
        assert now.get(series.STAGE_READY, stage="0", replica=str(1 - dead)) == 1


async def test_refused_requests_are_counted_though_they_never_run() -> None:
    limits = EngineOptions(max_queued_requests=0)
    async with observed(limits, engine_args={0: {"max_num_seqs": 1}}) as (orchestrator, metrics):
        running = orchestrator.submit(request(1, 10**6, step_s=0.001))
        await anext(running)
        with pytest.raises(OverloadedError):
            await collect(orchestrator, request(2, CODES))
        with pytest.raises(RequestError):
            await collect(orchestrator, request(3, CODES, surprise=object()))
        assert orchestrator.abort("r1")
        with pytest.raises(NotFoundError):
            async for _ in running:
                pass

        assert ends(metrics.registry) == {"overloaded": 1, "invalid": 1, "abort": 1}
        assert metrics.tracked == 0


async def test_deadlines_and_limits_have_reasons_of_their_own() -> None:
    async with observed() as (orchestrator, metrics):
        with pytest.raises(DeadlineError):
            await collect(orchestrator, request(1, CODES, hang_at=3, timeout_s=0.3))
        limited = request(2, CODES)
        object.__setattr__(limited, "sampling", {0: {"max_tokens": 4}})
        await collect(orchestrator, limited)

        assert ends(metrics.registry) == {"deadline": 1, "length": 1}
        assert metrics.registry.get(series.ABORTS, stage="0", replica="0", cause="deadline") == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFoundError("x"), "not_found"),
        (RequestError("x"), "invalid"),
        (OverloadedError("x"), "overloaded"),
        (DeadlineError("x"), "deadline"),
        (StageDeadError("x"), "stage_dead"),
        (ServiceError("x"), "error"),
        (ConfigError("x"), "error"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_each_kind_of_error_has_a_reason(error: OmniError, reason: str) -> None:
    assert error_reason(error) == reason
    assert reason in REASONS


def test_states_are_those_of_stage_processes() -> None:
    assert set(STATES) == {state.value for state in StageState}


async def test_labels_are_as_many_after_many_requests_as_after_one() -> None:
    """B26: no series for a request's id."""
    async with observed() as (orchestrator, metrics):
        await collect(orchestrator, request(0, CODES, name="first"))
        await give_up(orchestrator, 1)
        registry = metrics.registry
        await async_wait_until(lambda: _told(registry, CODES), "both stages to tell their numbers")

        def labels() -> dict[str, set[Any]]:
            return {family.series.name: {*family.values, *family.spreads} for family in registry.families()}

        before = labels()
        await asyncio.gather(*(collect(orchestrator, request(seed, CODES, name=f"name-{seed}")) for seed in range(40)))
        await asyncio.gather(*(give_up(orchestrator, seed) for seed in range(5)))
        await async_wait_until(lambda: _told(registry, 41 * CODES), "both stages to tell their numbers")

        assert {name: len(found) for name, found in labels().items()} == {name: len(found) for name, found in before.items()}
        assert not [key for found in labels().values() for key in found if "name-" in str(key) or "first" in str(key)]


async def test_the_line_of_log_stats_says_what_happened_since_the_last_one() -> None:
    async with observed() as (orchestrator, metrics):
        line = StatsLine(metrics.registry, orchestrator.health)
        await asyncio.gather(*(collect(orchestrator, request(seed, CODES)) for seed in range(4)))
        await give_up(orchestrator, 1)
        await async_wait_until(
            lambda: metrics.registry.get(series.TOKENS, stage="0", replica="0") >= 4 * CODES, "the stages' numbers"
        )

        first, second = line.line(10), line.line(10)

        assert "\n" not in first
        assert first.startswith("last 10 s: 0 running, 0 waiting, 4 done, 1 aborted, 0 failed, first output ")
        assert "stage 0.0 (talker) 0 open" in first
        assert "tokens/s" in first
        assert second.startswith("last 10 s: 0 running, 0 waiting, 0 done, 0 aborted, 0 failed, stage 0.0 (talker) 0 open")
