"""Spans of requests across stages, through OpenTelemetry where an endpoint is configured. Runs in the server's process.

A request's span has the current OpenTelemetry context as its parent: the server puts the client's `traceparent` there, users
of the Python API have their own spans there. Below it are a span for the wait and one for each stage. What a stage's process
does itself hangs below the stage's span, whose `traceparent` travels with the request.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from omni_core.engine.messages import Chunk, FromHost, Output
from omni_core.errors import DependencyError, OmniError
from omni_core.observe.endpoint import TRACES_ENDPOINT_ENV, traces_endpoint, traces_protocol
from omni_core.observe.observer import Observer
from omni_core.observe.requests import end_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omni_core.engine.flight import Flight
    from omni_core.engine.stage_process import StageProcess

logger = logging.getLogger(__name__)

FLUSH_S = 3.0
"""How long the end of a process waits for the collector."""
_SWITCH_S = 0.0005
"""How long a thread that encodes spans may keep the interpreter from one that has a request in hand. Python's own 5 ms are paid
at each wake-up of an event loop meanwhile, several times in a first packet."""
_HINT = "pip install opentelemetry-sdk opentelemetry-exporter-otlp, or leave the endpoint out"


class Tracing:
    """A source of spans and what exports them.

    Args:
        provider: An OpenTelemetry tracer provider.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer("omni")

    def close(self, timeout_s: float = FLUSH_S) -> bool:
        """Send what is left, for `timeout_s` seconds at most, and return whether that was enough."""
        return shut_down(self._provider, timeout_s)


def share_interpreter() -> None:
    """Let the threads of this process take turns at the interpreter often enough for one that sends spans (`_SWITCH_S`)."""
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))


def shut_down(provider: Any, timeout_s: float = FLUSH_S) -> bool:
    """Send the spans that an OpenTelemetry tracer provider still has, and return whether it was done by the deadline.

    OpenTelemetry itself would wait for half a minute for a collector that is away. What it has not sent is lost.
    """
    ending = threading.Thread(target=provider.shutdown, name="omni-spans-end", daemon=True)
    ending.start()
    ending.join(timeout_s)
    if ending.is_alive():
        logger.warning("the collector of the traces did not answer within %g s: the last spans are lost", timeout_s)
    return not ending.is_alive()


def configured_tracing() -> Tracing | None:
    """Return the tracing that the environment asks for, None if it asks for none.

    Raises:
        DependencyError: An endpoint is set, but the packages that send to it are not installed.
    """
    if traces_endpoint() is None:
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # `remote_parent` needs it, and the first request would pay for it.
        importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        exporter: Any
        if traces_protocol().startswith("http"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

            exporter = HttpExporter()
        else:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            exporter = GrpcExporter()
    except ImportError as error:
        raise DependencyError(f"traces cannot be sent: {error}", where=TRACES_ENDPOINT_ENV, hint=_HINT) from error
    share_interpreter()
    name = os.environ.get("OTEL_SERVICE_NAME", "omni")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def remote_parent(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """Return a context manager in which spans have the caller's trace as their parent; one that cannot be read is left out.

    Args:
        headers: `traceparent` and `tracestate` of the W3C, in lower case.
    """
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    @contextmanager
    def attached() -> Iterator[None]:
        token = context.attach(TraceContextTextMapPropagator().extract(dict(headers), context.Context()))
        try:
            yield
        finally:
            context.detach(token)

    return attached()


class RequestTraces(Observer):
    """Make a span for each request, its wait and its stages.

    Args:
        tracer: An OpenTelemetry tracer.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._spans: dict[str, _Spans] = {}

    def accepted(self, flight: Flight) -> None:
        """Begin the request's span and that of its wait."""
        root = self._tracer.start_span("omni.request", attributes={"omni.request_id": flight.request.request_id})
        self._spans[flight.id] = spans = _Spans(root)
        spans.begin(self._tracer, "wait", "omni.wait", {})

    def began(self, flight: Flight) -> None:
        """End the wait."""
        if (spans := self._spans.get(flight.id)) is not None:
            spans.end("wait")

    def opened(self, flight: Flight, process: StageProcess) -> str:
        """Begin a stage's span and return its `traceparent`."""
        if (spans := self._spans.get(flight.id)) is None:
            return ""
        stage = process.stage
        facts = {"omni.stage": stage.stage_id, "omni.stage_name": stage.topology.model_stage, "omni.replica": process.replica}
        return _traceparent(spans.begin(self._tracer, stage.stage_id, f"omni.stage {stage.topology.model_stage}", facts))

    def took(self, flight: Flight, process: StageProcess, message: FromHost) -> None:
        """Note what came first, and end the span of a stage that is done."""
        if (spans := self._spans.get(flight.id)) is None:
            return
        stage_id = process.stage.stage_id
        match message:
            case Chunk():
                if message.sequence == 0:
                    spans.note(stage_id, f"first chunk for stage {message.to_stage}")
                spans.count(stage_id, "omni.chunks")
            case Output():
                if message.sequence == 0:
                    spans.note(stage_id, "first output")
                spans.count(stage_id, "omni.outputs")
            case _:
                return
        if stage_id in flight.done_stages:
            spans.end(stage_id)

    def ended(self, flight: Flight, error: OmniError | None, aborted: bool) -> None:
        """End every span of a request."""
        if (spans := self._spans.pop(flight.id, None)) is not None:
            spans.close(end_reason(flight, error, aborted), error)

    @property
    def tracked(self) -> int:
        """The number of requests with spans that are open."""
        return len(self._spans)


class _Spans:
    """The open spans of one request."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: dict[Any, Any] = {}
        self._counts: dict[tuple[Any, str], int] = {}

    def begin(self, tracer: Any, key: Any, name: str, attributes: Mapping[str, Any]) -> Any:
        from opentelemetry.trace import set_span_in_context

        span = tracer.start_span(name, context=set_span_in_context(self._root), attributes=attributes)
        self._open[key] = span
        return span

    def note(self, key: Any, event: str) -> None:
        if (span := self._open.get(key)) is not None:
            span.add_event(event)

    def count(self, key: Any, name: str) -> None:
        self._counts[key, name] = self._counts.get((key, name), 0) + 1

    def end(self, key: Any) -> None:
        span = self._open.pop(key, None)
        if span is None:
            return
        for (owner, name), count in self._counts.items():
            if owner == key:
                span.set_attribute(name, count)
        span.end()

    def close(self, reason: str, error: OmniError | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        for key in list(self._open):
            self._open[key].set_attribute("omni.end", reason)
            self.end(key)
        self._root.set_attribute("omni.end", reason)
        if error is not None and reason != "abort":
            self._root.set_status(Status(StatusCode.ERROR, error.message))
        self._root.end()


def _traceparent(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
