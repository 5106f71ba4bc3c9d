"""vLLM's own series of two engines, side by side in one process: the case in which vLLM's own logger loses the first's."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_core.observe.series import Kind, Series
from omni_core.pipeline import StagePipelineConfig
from omni_core.runner import StageInput

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    # vLLM's client leaves contexts of zmq to the garbage collector.
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function Context.__del__"),
]

INPUT = {"custom_process_input_func": "omni_core.testing.tiny_ar:TinyInput", "engine_output_type": "latent"}


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()  # what a stopped engine leaves is collected under this module's filters, not in some later test


@pytest.fixture
async def runners(make_stage: Any) -> AsyncIterator[list[Any]]:
    """Two stages, each with an engine of its own."""
    from omni_core.engine.ar.runner import ArRunner

    stage = make_stage(topology=INPUT)
    stages = [replace(stage, topology=StagePipelineConfig(stage_id=i, model_stage=f"s{i}", **INPUT)) for i in (0, 1)]
    started = [ArRunner(one, 0) for one in stages]
    try:
        for runner in started:
            await runner.start()
        yield started
    finally:
        await asyncio.gather(*(runner.stop() for runner in started))


async def run(runner: Any, name: str, rows: np.ndarray[Any, Any], tokens: int) -> None:
    sampling = {**runner.stage.sampling, "max_tokens": tokens}
    async for _ in runner.run(StageInput(name, {"rows": rows, "tag": name}, sampling)):
        pass


def value(registry: Registry, name: str, stage: int) -> float:
    """Return the sum of a series of vLLM's for a stage."""
    return registry.total(Series(name, Kind.COUNTER, ""), stage=str(stage), replica="0")


async def test_two_engines_keep_their_own_series(runners: list[Any], rows_of: Callable[[int], np.ndarray[Any, Any]]) -> None:
    """B26."""
    server = Registry()
    await asyncio.gather(
        *(run(runners[0], f"a{i}", rows_of(i), 10) for i in range(3)),
        *(run(runners[1], f"b{i}", rows_of(i), 4) for i in range(2)),
    )
    for runner in runners:
        server.apply(runner.metrics.take())

    prompt = 6
    for stage, (requests, tokens) in enumerate([(3, 10), (2, 4)]):
        assert value(server, "vllm:generation_tokens_total", stage) == requests * tokens
        assert value(server, "vllm:prompt_tokens_total", stage) == requests * prompt
        assert value(server, "vllm:request_success_total", stage) == requests
        assert value(server, "vllm:num_requests_running", stage) == 0
        labels = {"stage": str(stage), "replica": "0"}
        for name in (
            "vllm:time_to_first_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:e2e_request_latency_seconds",
        ):
            what = Series(name, Kind.HISTOGRAM, "")
            assert server.total(what, **labels) > 0
        ttft = Series("vllm:time_to_first_token_seconds", Kind.HISTOGRAM, "")
        assert server.total_count(ttft, **labels) == requests
        assert server.count(series.STEP_SECONDS, **labels) >= tokens - 1
        assert server.get(series.STEP_SECONDS, **labels) > 0
        assert server.get(series.BATCH_SIZE, **labels) == requests * tokens
        assert server.get(series.FRAMES, **labels) == requests * tokens
    names = {family.series.name for family in server.families()}
    assert {"vllm:kv_cache_usage_perc", "vllm:num_preemptions_total", "vllm:num_requests_waiting"} <= names
    assert all(dict(key)["stage"] in "01" for family in server.families() for key in (*family.values, *family.spreads))

    await run(runners[0], "a9", rows_of(9), 5)
    server.apply(runners[0].metrics.take())

    assert value(server, "vllm:generation_tokens_total", 0) == 35
    assert value(server, "vllm:generation_tokens_total", 1) == 8


async def test_a_counter_gets_its_ending_and_clashing_labels_another_name() -> None:
    from omni_core.engine.ar.stats import stat_logger

    registry = Registry({"stage": "1", "replica": "0"})
    kind = stat_logger(registry)

    counter = kind._counter_cls("vllm:things", "Things.", ["model_name", "stage"])
    counter.labels("tiny", "waiting").inc(2)
    counter.labels(model_name="tiny", stage="waiting").inc()
    kind._gauge_cls(name="vllm:now", documentation="Now.", labelnames=(), multiprocess_mode="sum").set(7)
    histogram = kind._histogram_cls(name="vllm:spread", documentation="Spread.", labelnames=["m"], buckets=[1, 5])
    histogram.labels("x").observe(3)

    found = {family.series.name: family for family in registry.families()}
    (labels,) = found["vllm:things_total"].values
    assert dict(labels) == {"stage": "1", "replica": "0", "model_name": "tiny", "exported_stage": "waiting"}
    assert found["vllm:things_total"].values[labels] == 3
    assert list(found["vllm:now"].values.values()) == [7]
    (spread,) = found["vllm:spread"].spreads.values()
    assert (spread.bounds, spread.counts) == ((1.0, 5.0), [0, 1, 0])
