"""Every series of numbers that Omni's own code measures, by name. docs/metrics.md is checked against this table.

Labels are few and bounded: stages, replicas, edges, reasons, states. Never a request's id, a user's text or a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a series' numbers mean."""

    COUNTER = "counter"
    """Grows. Its name ends in `_total`."""
    GAUGE = "gauge"
    """The present value."""
    HISTOGRAM = "histogram"
    """How often values fell under each of `Series.buckets`, and their sum."""


@dataclass(frozen=True)
class Series:
    """One family of numbers."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending, without infinity."""


STAGE = ("stage", "replica")
"""Labels of what one replica of one stage measures: the stage's id and the replica's number, both from 0."""
EDGE = ("from_stage", "to_stage")
TRANSFER = (*STAGE, "peer", "operation")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SHORT_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FACTORS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)


def _counter(name: str, text: str, *labels: str) -> Series:
    return Series(name, Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Series:
    return Series(name, Kind.GAUGE, text, labels)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Series:
    return Series(name, Kind.HISTOGRAM, text, labels, buckets)


# Requests, as the orchestrator sees them

REQUESTS_RUNNING = _gauge("omni_requests_running", "Requests that stages work on.")
REQUESTS_WAITING = _gauge("omni_requests_waiting", "Requests that wait for the first stage to have room.")
REQUESTS = _counter("omni_requests_total", "Requests that ended, by reason.", "reason")
QUEUE_SECONDS = _histogram("omni_request_queue_seconds", "Time that requests waited before a stage had room for them.")
REQUEST_SECONDS = _histogram("omni_request_seconds", "Time from a request's arrival to its complete answer.")
FIRST_OUTPUT_SECONDS = _histogram(
    "omni_first_output_seconds", "Time from a request's arrival to the first output of a final stage."
)
ABORTS = _counter("omni_aborts_total", "Requests that a stage was told to drop before it was done, by cause.", *STAGE, "cause")
CHUNKS = _counter("omni_chunks_total", "Chunks handed from one stage to another.", *EDGE)
CHUNK_SECONDS = _histogram(
    "omni_chunk_latency_seconds", "Time from the moment a chunk could be fetched until its consumer had computed it.", *EDGE
)

# Stages, as the orchestrator sees them

STAGE_REQUESTS = _gauge("omni_stage_requests", "Requests that are open in a stage replica.", *STAGE)
STAGE_WAITING = _gauge("omni_stage_waiting", "Chunks in line before a stage that computes in batches.", *STAGE)
STAGE_READY = _gauge("omni_stage_ready", "1 while a stage replica takes requests, else 0.", *STAGE)
STAGE_STATE = _gauge("omni_stage_state", "1 for the state that a stage replica is in, 0 for the others.", *STAGE, "state")
STAGE_RESTARTS = _counter("omni_stage_restarts_total", "Restarts of a stage replica.", *STAGE)
STAGE_INFO = _gauge("omni_stage_info", "Always 1: the name of a stage.", *STAGE, "name")

# What a stage replica measures itself

TOKENS = _counter("omni_tokens_total", "Tokens that a stage made.", *STAGE)
FRAMES = _counter("omni_frames_total", "Frames of audio codes that a stage made, or took in to decode them.", *STAGE)
AUDIO_SECONDS = _counter("omni_audio_seconds_total", "Seconds of audio that a stage made.", *STAGE)
STEP_SECONDS = _histogram("omni_step_seconds", "Time of one step of an engine over its batch.", *STAGE, buckets=_SHORT_SECONDS)
BATCH_SIZE = _histogram("omni_batch_size", "Requests in one step of an engine.", *STAGE, buckets=_BATCHES)
RESIDENT_BYTES = _gauge("omni_process_resident_bytes", "Resident memory of a stage's processes.", *STAGE, "process")
TRANSFER_BYTES = _counter(
    "omni_transfer_bytes_total", "Bytes of payloads that one end of an edge put or got; `peer` is the other stage.", *TRANSFER
)
TRANSFER_SECONDS = _histogram(
    "omni_transfer_seconds", "Time of one put or get of a connector.", *TRANSFER, buckets=_SHORT_SECONDS
)
IN_FLIGHT = _gauge("omni_transfer_in_flight", "Payloads that one end's connector holds.", *TRANSFER)

# Audio, where the server sends it

FIRST_PACKET_SECONDS = _histogram(
    "omni_audio_first_packet_seconds", "Time from a request's arrival until its first samples left, audible or not.", "delivery"
)
FIRST_AUDIBLE_SECONDS = _histogram(
    "omni_audio_first_audible_seconds",
    "Time from a request's arrival until a player that starts with the first packet plays something audible.",
    "delivery",
)
REAL_TIME_FACTOR = _histogram(
    "omni_audio_real_time_factor",
    "Time that a complete answer took, divided by its audio's duration.",
    "delivery",
    buckets=_FACTORS,
)
UNDERRUNS = _counter("omni_audio_underruns_total", "How often a player that starts with the first packet ran dry.", "delivery")
UNDERRUN_SECONDS = _counter("omni_audio_underrun_seconds_total", "How long such players were silent.", "delivery")
ANSWERS = _counter("omni_audio_answers_total", "Answers with audio, by how they ended.", "delivery", "ending")
HTTP_REQUESTS = _counter("omni_http_requests_total", "HTTP requests that were answered.", "method", "route", "status")

# Full-duplex sessions

DUPLEX_SESSIONS = _gauge("omni_duplex_sessions", "Full-duplex sessions that hold a slot.", "frontend", "group")
DUPLEX_FREE_SLOTS = _gauge("omni_duplex_free_slots", "Full-duplex sessions that can be opened now, at most.", "frontend")
DUPLEX_REFUSALS = _counter("omni_duplex_refusals_total", "Sessions that could not be opened, by code.", "frontend", "code")
DUPLEX_ENDINGS = _counter("omni_duplex_endings_total", "Sessions that ended, by reason.", "frontend", "reason")
DUPLEX_RESUMES = _counter("omni_duplex_resumes_total", "Clients that came back to their session.", "frontend")
DUPLEX_RESPONSES = _counter("omni_duplex_responses_total", "Answers in sessions, by how they ended.", "frontend", "status")
DUPLEX_FIRST_AUDIO_SECONDS = _histogram(
    "omni_duplex_first_audio_seconds", "Time from the end of a user's turn to the first audio of the answer.", "frontend"
)
DUPLEX_LATENESS_SECONDS = _histogram(
    "omni_duplex_unit_lateness_seconds",
    "How much later than in real time a unit model had heard a unit of audio.",
    "frontend",
    buckets=_SHORT_SECONDS,
)

SERIES: tuple[Series, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Series))
"""All of the above, in this order."""
