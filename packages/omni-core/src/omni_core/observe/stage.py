"""What a stage's process measures about itself. Runs in the stage host; the server gets it with the heartbeats."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_core.observe import series
from omni_core.observe.registry import Registry

if TYPE_CHECKING:
    from omni_core.payload import Payload
    from omni_core.runner import StageOutput
    from omni_core.stage import ResolvedStage


def stage_registry(stage: ResolvedStage, replica: int) -> Registry:
    """Return an empty registry whose numbers bear the labels of a stage replica."""
    return Registry({"stage": str(stage.stage_id), "replica": str(replica)})


class OutputMeter:
    """Count the tokens and the audio that a stage makes.

    Args:
        registry: Where the numbers go.
        facts: What the runner told when it was ready, `sample_rate` among it.
    """

    def __init__(self, registry: Registry, facts: Mapping[str, Any]) -> None:
        self._tokens = registry.cell(series.TOKENS)
        self._seconds = registry.cell(series.AUDIO_SECONDS)
        self._rate = float(facts.get("sample_rate") or 0)

    def note(self, output: StageOutput) -> None:
        """Count what an output brings."""
        if output.token_ids:
            self._tokens.inc(len(output.token_ids))
        audio = output.tensors.get("audio") if self._rate else None
        if audio is not None:
            self._seconds.inc(len(audio) / self._rate)


def note_step(registry: Registry, seconds: float, payloads: Sequence[Payload]) -> None:
    """Note one step over a batch of payloads that turn into something else: its time, its size, the frames taken in."""
    registry.observe(series.STEP_SECONDS, seconds)
    registry.observe(series.BATCH_SIZE, len(payloads))
    if frames := sum(_frames(payload) for payload in payloads):
        registry.inc(series.FRAMES, frames)


def _frames(tensors: Mapping[str, Any]) -> int:
    # `codes` may be qualified by what they code: `codes.audio`.
    return sum(len(value) for name, value in tensors.items() if name == "codes" or name.startswith("codes."))


def payload_bytes(payload: Any) -> int:
    """Return the bytes of the arrays, texts and byte strings of a payload; plain numbers count for nothing."""
    if isinstance(payload, Mapping):
        return sum(payload_bytes(value) for value in payload.values())
    if isinstance(payload, (bytes, str)):
        return len(payload)
    if isinstance(payload, Sequence):
        return sum(payload_bytes(value) for value in payload)
    return int(getattr(payload, "nbytes", 0))


@contextlib.contextmanager
def timed_transfer(registry: Registry | None, peer: int, operation: str) -> Iterator[None]:
    """Time one call of a connector, if anybody wants to know; calls that fail are not counted."""
    began = time.monotonic()
    yield
    if registry is not None:
        registry.observe(series.TRANSFER_SECONDS, time.monotonic() - began, peer=str(peer), operation=operation)


def note_transfer(registry: Registry | None, payload: Payload, peer: int, operation: str) -> None:
    """Count a payload that went through a connector, if anybody wants to know."""
    if registry is not None:
        registry.inc(series.TRANSFER_BYTES, payload_bytes(payload), peer=str(peer), operation=operation)


def note_in_flight(registry: Registry | None, count: int, peer: int, operation: str) -> None:
    """Note how many payloads one end of an edge holds, if anybody wants to know."""
    if registry is not None:
        registry.set(series.IN_FLIGHT, count, peer=str(peer), operation=operation)


def note_processes(registry: Registry, processes: Mapping[str, int]) -> None:
    """Note the resident memory of processes, given by what they are; those that are gone are left out."""
    import psutil

    for name, pid in processes.items():
        with contextlib.suppress(psutil.Error):
            registry.set(series.RESIDENT_BYTES, psutil.Process(pid).memory_info().rss, process=name)
