"""Spans of a request across stages, with OpenTelemetry's own exporter into memory."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from omni_core.engine.orchestrator import Orchestrator
from omni_core.errors import DependencyError, RequestError
from omni_core.observe import tracing
from omni_core.observe.endpoint import traces_endpoint
from omni_core.observe.tracing import RequestTraces, Tracing, configured_tracing, remote_parent
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.running import collect, request

pytestmark = pytest.mark.anyio

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorder:
    """A tracer and the spans that it ended."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traces = RequestTraces(provider.get_tracer("test"))

    def spans(self) -> dict[str, Any]:
        found = {span.name: span for span in self._exporter.get_finished_spans()}
        self._exporter.clear()
        return found


async def test_a_request_is_one_trace_across_its_stages() -> None:
    recorder = Recorder()
    orchestrator = Orchestrator(fake_pipeline(), observer=recorder.traces)
    await orchestrator.start()
    try:
        with remote_parent({"traceparent": PARENT}):
            await collect(orchestrator, request(1, 6))
    finally:
        await orchestrator.stop(0)

    spans = recorder.spans()

    assert set(spans) == {"omni.request", "omni.wait", "omni.stage talker", "omni.stage vocoder"}
    root = spans["omni.request"]
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    for name, span in spans.items():
        assert span.context.trace_id == root.context.trace_id
        if span is not root:
            assert span.parent.span_id == root.context.span_id, name
            assert root.start_time <= span.start_time <= span.end_time <= root.end_time
    assert root.attributes["omni.request_id"] == "r1"
    assert root.attributes["omni.end"] == "stop"
    talker, vocoder = spans["omni.stage talker"], spans["omni.stage vocoder"]
    assert talker.attributes["omni.chunks"] == vocoder.attributes["omni.outputs"] == 2
    assert [event.name for event in talker.events] == ["first chunk for stage 1"]
    assert talker.start_time <= vocoder.start_time
    assert recorder.traces.tracked == 0


async def test_spans_of_failed_and_abandoned_requests_end_too() -> None:
    recorder = Recorder()
    orchestrator = Orchestrator(fake_pipeline(), observer=recorder.traces)
    await orchestrator.start()
    try:
        with pytest.raises(RequestError):
            await collect(orchestrator, request(1, 6, fail_at=1))
        failed = recorder.spans()
        outputs = orchestrator.submit(request(2, 10**6, step_s=0.001))
        await anext(outputs)
        await cast("Any", outputs).aclose()
        left = recorder.spans()
    finally:
        await orchestrator.stop(0)

    assert failed["omni.request"].attributes["omni.end"] == "invalid"
    assert not failed["omni.request"].status.is_ok
    assert "the seed is unlucky" in failed["omni.request"].status.description
    assert left["omni.request"].attributes["omni.end"] == "abort"
    assert left["omni.request"].status.is_unset
    assert {"omni.stage talker", "omni.stage vocoder"} <= set(left)
    assert recorder.traces.tracked == 0


async def test_a_stage_is_told_its_span() -> None:
    """The stage's own spans, such as vLLM's, hang below that one."""
    recorder = Recorder()
    told: dict[int, str] = {}

    class Listening(RequestTraces):
        def opened(self, flight: Any, process: Any) -> str:
            told[process.stage.stage_id] = trace = super().opened(flight, process)
            return trace

    recorder.traces.__class__ = Listening
    orchestrator = Orchestrator(fake_pipeline(), observer=recorder.traces)
    await orchestrator.start()
    try:
        await collect(orchestrator, request(1, 6))
    finally:
        await orchestrator.stop(0)

    spans = recorder.spans()
    for stage_id, name in enumerate(("talker", "vocoder")):
        context = spans[f"omni.stage {name}"].context
        assert told[stage_id] == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@pytest.mark.parametrize("header", ["", "00-zz-b7ad6b7169203331-01", "x" * 5000], ids=["empty", "not hexadecimal", "long"])
async def test_a_parent_that_cannot_be_read_begins_a_new_trace(header: str) -> None:
    recorder = Recorder()
    orchestrator = Orchestrator(fake_pipeline(), observer=recorder.traces)
    await orchestrator.start()
    try:
        with remote_parent({"traceparent": header}):
            await collect(orchestrator, request(1, 3))
    finally:
        await orchestrator.stop(0)

    assert recorder.spans()["omni.request"].parent is None


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, "http://c:4317"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "http://c:4318/v1/traces",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:2"}, "http://t:2"),
    ],
    ids=["nothing", "empty", "grpc", "http adds the path", "the one for traces wins"],
)
def test_the_endpoint_is_read_as_opentelemetry_does(environ: dict[str, str], endpoint: str | None) -> None:
    assert traces_endpoint(environ) == endpoint


def test_nothing_is_traced_without_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "traces_endpoint", lambda: None)

    assert configured_tracing() is None


class Exporter:
    """What sends spans to a collector that answers only once it is let."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.may_answer = threading.Event()

    def export(self, spans: Any) -> Any:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.may_answer.wait(60)
        self.sent += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do as the real ones, which wait for nothing here."""


def _traced(exporter: Exporter) -> Tracing:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(cast("Any", exporter)))
    return Tracing(provider)


def test_what_is_left_is_sent_at_the_end() -> None:
    exporter = Exporter()
    exporter.may_answer.set()
    tracing = _traced(exporter)
    tracing.tracer.start_span("the last").end()

    assert tracing.close(60)
    assert [span.name for span in exporter.sent] == ["the last"]


def test_a_collector_that_is_away_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter()
    tracing = _traced(exporter)
    tracing.tracer.start_span("lost").end()

    assert not tracing.close(0.05)
    assert exporter.sent == []
    assert "did not answer within 0.05 s" in caplog.text
    exporter.may_answer.set()


def test_threads_of_a_process_that_sends_spans_take_turns_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    exporter = Exporter()
    exporter.may_answer.set()
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, cast("Any", SimpleNamespace(OTLPSpanExporter=lambda: exporter)))
    before = sys.getswitchinterval()
    try:
        tracing = configured_tracing()
        assert tracing is not None
        assert sys.getswitchinterval() == pytest.approx(0.0005)
        assert tracing.close(60)
    finally:
        sys.setswitchinterval(before)


def test_missing_packages_are_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "traces_endpoint", lambda: "http://c:4317")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(DependencyError, match="pip install opentelemetry-sdk"):
        configured_tracing()
