"""GET /metrics on a scripted engine: what is counted, in which form, and that nothing grows with requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from omni_core.errors import OverloadedError
from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_core.observe.series import SERIES
from omni_server.fake_engine import FakeEngine
from omni_server.metrics import write_text

pytestmark = pytest.mark.anyio

Sample = tuple[str, tuple[tuple[str, str], ...]]


async def scrape(client: Any) -> dict[Sample, float]:
    """Return every sample of a scrape by its name and labels."""
    response = await client.get("/metrics")
    assert response.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(response.text)
        for sample in family.samples
    }


def grown(before: dict[Sample, float], after: dict[Sample, float], name: str, /, **labels: str) -> float:
    """Return by how much a sample grew between two scrapes."""
    key = (name, tuple(sorted(labels.items())))
    return after.get(key, 0.0) - before.get(key, 0.0)


async def test_answers_are_counted_by_how_they_ended(client: Any, call: Any, engine: FakeEngine) -> None:
    """B26: ten good requests, three aborted ones, an invalid one; the difference of two scrapes is exact."""
    before = await scrape(client)
    for index in range(10):
        fields = {"stream_format": "audio", "response_format": "pcm"} if index % 2 else {}
        assert (await client.speak(**fields)).status_code == 200
    for _ in range(3):
        gone = call(client.app, {"input": "endless", "stream_format": "audio", "response_format": "pcm"})
        await gone.next()
        await gone.next()
        gone.leave.set()
        await gone.ended()
    await client.refused(400, "input", input="")

    after = await scrape(client)

    def answers(delivery: str, ending: str) -> float:
        return grown(before, after, "omni_audio_answers_total", delivery=delivery, ending=ending)

    assert (answers("whole", "complete"), answers("audio", "complete"), answers("audio", "aborted")) == (5, 5, 3)
    for name in ("first_packet_seconds", "first_audible_seconds"):
        assert grown(before, after, f"omni_audio_{name}_count", delivery="audio") == 8
        assert grown(before, after, f"omni_audio_{name}_sum", delivery="audio") > 0
    assert grown(before, after, "omni_audio_real_time_factor_count", delivery="whole") == 5
    assert grown(before, after, "omni_audio_real_time_factor_sum", delivery="whole") > 0

    def http(status: str) -> float:
        return grown(before, after, "omni_http_requests_total", method="POST", route="/v1/audio/speech", status=status)

    assert (http("200"), http("400")) == (13, 1)
    assert len(engine.aborted) == 3


async def test_a_failure_in_a_stream_is_no_complete_answer(client: Any) -> None:
    await client.speak("fail-later", stream_format="sse", response_format="pcm")
    await client.speak("fail")

    found = await scrape(client)

    assert grown({}, found, "omni_audio_answers_total", delivery="sse", ending="failed") == 1
    assert grown({}, found, "omni_audio_answers_total", delivery="whole", ending="failed") == 1
    assert not [name for name, _ in found if name == "omni_audio_real_time_factor_count"]


async def test_a_scrape_answers_while_requests_run(client: Any, call: Any, engine: FakeEngine) -> None:
    running = [call(client.app, {"input": "stall-later", "stream_format": "audio", "response_format": "pcm"}) for _ in range(8)]
    for one in running:
        await one.next()

    found = await asyncio.wait_for(scrape(client), 10)  # the requests would run for ever

    assert grown({}, found, "omni_stage_ready", stage="0", replica="0") == 1
    for one in running:
        one.leave.set()
        await one.ended()


async def test_stages_and_the_process_are_there_from_the_start(make_client: Callable[..., Any]) -> None:
    engine = FakeEngine(dead_stage=1)

    found = await scrape(make_client(engine))

    assert grown({}, found, "omni_requests_running") == 0
    assert ("omni_requests_total", (("reason", "abort"),)) in found
    assert grown({}, found, "omni_stage_info", stage="1", replica="0", name="code2wav") == 1
    assert grown({}, found, "omni_stage_ready", stage="1", replica="0") == 0
    assert grown({}, found, "omni_stage_state", stage="1", replica="0", state="dead") == 1
    assert grown({}, found, "process_resident_memory_bytes") > 1 << 20


async def test_series_do_not_grow_with_requests_paths_or_methods(client: Any) -> None:
    async def labels() -> set[Sample]:
        for index in range(3):
            await client.get(f"/v1/models/unknown-{index}")
            await client.get(f"/no/such/path/{index}")
            await client.request(f"METHOD{index}", "/health")
            await client.speak(headers={"X-Request-Id": f"label-{index}"})
            await client.speak(voice=f"nobody-{index}")
        return set(await scrape(client))

    first = await labels()
    await client.get("/metrics")
    second = await labels()

    # The scrapes themselves are counted, too, from the first one on.
    new = second - first
    assert {dict(labels).get("route") for _, labels in new} <= {"/metrics"}
    assert not [key for key in second if "label-" in str(key) or "unknown-" in str(key) or "nobody-" in str(key)]


async def test_metrics_need_no_key_and_openmetrics_is_spoken(make_client: Callable[..., Any]) -> None:
    client = make_client(api_key=("secret",))

    response = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})

    assert response.status_code == 200
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert "omni_stage_ready" in {family.name for family in parse_openmetrics(response.text)}
    assert (await client.get("/v1/models")).status_code == 401


def test_every_series_is_written_with_its_kind_and_help() -> None:
    registry = Registry()
    for item in SERIES:
        labels = dict.fromkeys(item.labels, "0")
        if item.buckets:
            registry.observe(item, 0.3, **labels)
        else:
            registry.inc(item, 1, **labels)

    text = write_text(registry.families())[0].decode()

    families = {family.name: family for family in parse_text(text)}
    for item in SERIES:
        family = families[item.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (item.kind.value, item.help)
        assert all(set(item.labels) <= set(sample.labels) for sample in family.samples)


def test_buckets_are_cumulative() -> None:
    registry = Registry()
    for value in (0.0001, 0.003, 0.003, 99.0):
        registry.observe(series.TRANSFER_SECONDS, value, stage="0", replica="0", peer="1", operation="put")

    (family,) = [f for f in parse_text(write_text(registry.families())[0].decode()) if f.name == "omni_transfer_seconds"]

    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert (buckets["0.00025"], buckets["0.0025"], buckets["0.005"], buckets["10.0"], buckets["+Inf"]) == (1, 1, 3, 3, 4)
    assert {sample.value for sample in family.samples if sample.name.endswith("_count")} == {4}


async def test_requests_that_are_refused_outside_the_engine_count_as_http_only(client: Any, engine: FakeEngine) -> None:
    with pytest.raises(OverloadedError), engine.telemetry.refusals():
        raise OverloadedError("busy")
    await client.post("/v1/audio/speech", content=b"{", headers={"Content-Type": "application/json"})

    found = await scrape(client)

    assert grown({}, found, "omni_requests_total", reason="overloaded") == 1
    assert grown({}, found, "omni_requests_total", reason="invalid") == 0
    assert grown({}, found, "omni_http_requests_total", method="POST", route="/v1/audio/speech", status="400") == 1
