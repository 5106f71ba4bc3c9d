"""A real server as its operator sees it: numbers on /metrics, traces at a collector, profiles in a folder, lines on the log."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
FRAMES = 10
FRAME_SAMPLES = 1920
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Collector:
    """A place that takes OpenTelemetry's traces over HTTP."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)

    def names(self, trace: str) -> set[str]:
        return {span.name for span in list(self.spans) if span.trace_id.hex() == trace}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            sent = ExportTraceServiceRequest.FromString(data)
            collector.spans += [span for r in sent.resource_spans for scope in r.scope_spans for span in scope.spans]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join(10)


@dataclass
class Observed:
    """A server, and where its traces and profiles go."""

    server: RunningServer
    collector: Collector
    profiles: Path


@pytest.fixture(scope="module")
def observed(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("observed")
    with collecting() as collector:
        env = {
            "OMP_NUM_THREADS": "1",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
        }
        flags = ["--log-stats", "1", "--profile-dir", str(folder / "profiles"), "--otlp-traces-endpoint", collector.url]
        with serve(tiny("custom_voice"), *flags, log=folder / "log", env=env) as server:
            yield Observed(server, collector, folder / "profiles")


def scrape(server: RunningServer) -> Samples:
    response = httpx.get(f"{server.url}/metrics", timeout=10)
    assert response.status_code == 200
    found = [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}


def total(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of the samples with this name whose labels include these."""
    return sum(value for (found, given), value in samples.items() if found == name and labels.items() <= given)


def until(check: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.2)


def speak(server: RunningServer, number: int, **headers: str) -> int:
    """Ask for ten frames and return how many came."""
    fields = {"input": f"Sentence number {number}.", "seed": number, "max_new_tokens": FRAMES, "response_format": "pcm"}
    stream = {"stream_format": "audio"} if number % 2 else {}
    response = httpx.post(f"{server.url}/v1/audio/speech", json={**fields, **stream}, headers=headers, timeout=120)
    assert response.status_code == 200, response.text
    assert len(response.content) % (2 * FRAME_SAMPLES) == 0
    return len(response.content) // (2 * FRAME_SAMPLES)


def abandon(server: RunningServer) -> None:
    """Go away after the first bytes of a long answer, which a random model would end by chance without `min_tokens`."""
    fields = {"input": "Long.", "max_new_tokens": 2000, "response_format": "pcm", "stream_format": "audio"}
    fields["sampling_params_list"] = [{"min_tokens": 2000}, {}]
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=fields, timeout=120) as response:
        next(response.iter_bytes())


def test_two_scrapes_differ_by_what_was_done(observed: Observed) -> None:
    """B26: ten good requests, three aborted ones, an invalid one."""
    server = observed.server
    before = scrape(server)

    def since(now: Samples, name: str, **labels: str) -> float:
        return total(now, name, **labels) - total(before, name, **labels)

    def grown(name: str, **labels: str) -> float:
        return since(scrape(server), name, **labels)

    def frames_made(now: Samples) -> list[float]:
        """Return the frames of both stages, and those that the audio has."""
        seconds = since(now, "omni_audio_seconds_total", stage="1")
        return [*(since(now, "omni_frames_total", stage=stage) for stage in "01"), round(seconds * 24000 / FRAME_SAMPLES, 6)]

    def bytes_moved(now: Samples) -> list[float]:
        moves = (("0", "put"), ("1", "get"))
        return [since(now, "omni_transfer_bytes_total", stage=stage, operation=operation) for stage, operation in moves]

    def tokens_made(now: Samples) -> list[float]:
        """Return the tokens as we and as vLLM count them."""
        return [since(now, name, stage="0") for name in ("omni_tokens_total", "vllm:generation_tokens_total")]

    def is_told() -> bool:
        """Whether the stages have told of everything: a heartbeat may take some numbers of a step and leave others."""
        now = scrape(server)
        return frames_made(now) == [frames] * 3 and all(len({*pair}) == 1 for pair in (bytes_moved(now), tokens_made(now)))

    frames = sum(speak(server, number) for number in range(10))
    until(is_told, "the same numbers from both stages, and from vLLM")
    good = scrape(server)

    assert min(bytes_moved(good)) > 0
    assert frames <= min(tokens_made(good)) <= frames + 10
    assert not total(good, "vllm:generation_tokens_total", stage="1")

    for _ in range(3):
        abandon(server)
    invalid = httpx.post(f"{server.url}/v1/audio/speech", json={"input": "x", "voice": "nobody"}, timeout=30)
    assert invalid.status_code == 400
    until(lambda: grown("omni_requests_total", reason="abort") == 3, "the aborts")
    until(lambda: total(scrape(server), "vllm:num_requests_running", stage="0") == 0, "the engine to be empty")

    after = scrape(server)
    assert grown("omni_requests_total", reason="stop") + grown("omni_requests_total", reason="length") == 10
    assert grown("omni_requests_total", reason="invalid") == 1
    assert grown("omni_requests_total") == 14
    assert total(after, "omni_requests_running") == total(after, "omni_requests_waiting") == 0
    for name in (
        "omni_request_seconds",
        "omni_first_output_seconds",
        "omni_chunk_latency_seconds",
        "omni_step_seconds",
        "omni_transfer_seconds",
        "omni_audio_first_packet_seconds",
        "omni_audio_real_time_factor",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
    ):
        assert total(after, f"{name}_sum") > 0, name
    for stage in "01":
        assert total(after, "omni_step_seconds_count", stage=stage) > 0
        assert total(after, "omni_process_resident_bytes", stage=stage, process="host") > 1 << 20
    assert total(after, "omni_process_resident_bytes", stage="0", process="engine") > 1 << 20


def test_stages_are_profiled_into_folders_of_their_own(observed: Observed) -> None:
    server = observed.server
    started = httpx.post(f"{server.url}/start_profile", timeout=120)
    assert started.status_code == 200, started.text
    again = httpx.post(f"{server.url}/start_profile", timeout=120)
    assert again.status_code == 400
    speak(server, 30)

    stopped = httpx.post(f"{server.url}/stop_profile", timeout=180)

    assert stopped.status_code == 200, stopped.text
    answers = stopped.json()["stages"]
    assert [(answer["stage_id"], answer["status"]) for answer in answers] == [(0, "OK"), (1, "OK")]
    for answer in answers:
        traces = [Path(name) for name in answer["files"] if name.endswith(".json.gz")]
        assert traces, answer
        assert traces[0].parent.parent == observed.profiles
        events = json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]
        assert [event for event in events if str(event.get("name", "")).startswith("aten::")]
    assert len({Path(answer["files"][0]).parent for answer in answers}) == 2


def test_the_log_has_a_line_of_statistics_for_each_interval(observed: Observed) -> None:
    pattern = re.compile(
        r"last 1 s: \d+ running, \d+ waiting, [1-9]\d* done, \d+ aborted, \d+ failed, first output .* tokens/s"
    )

    def is_logged() -> bool:
        """Look behind another request: the line of an interval has the tokens told of in it, which is once in two seconds."""
        speak(observed.server, 40)
        return bool(pattern.search(observed.server.log.read_text()))

    until(is_logged, "a line of statistics")


def test_a_request_is_one_trace_from_the_client_to_the_engine(observed: Observed) -> None:
    """The last test of the server: what waits for the next time that spans are sent is sent when it stops."""
    speak(observed.server, 21, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")

    assert observed.collector.names(TRACE) == set()
    assert observed.server.stop() == 0

    assert {"omni.request", "omni.wait", "omni.stage code2wav", "llm_request"} <= observed.collector.names(TRACE)

    spans = {span.name: span for span in observed.collector.spans if span.trace_id.hex() == TRACE}
    assert spans["omni.request"].parent_span_id.hex() == "b7ad6b7169203331"
    (talker,) = [span for name, span in spans.items() if name.startswith("omni.stage") and "code2wav" not in name]
    assert spans["llm_request"].parent_span_id == talker.span_id
