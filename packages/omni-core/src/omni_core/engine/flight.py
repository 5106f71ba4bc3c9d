"""One request on its way through the stages, as the orchestrator knows it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from omni_core.engine.feed import Feed
from omni_core.engine.messages import Chunk, Consumed, FromHost, Output
from omni_core.engine.stage_process import StageProcess
from omni_core.errors import OmniError, RequestError, ServiceError
from omni_core.payload import encode_payload
from omni_core.pipeline import PipelineConfig
from omni_core.request import OmniRequest


@dataclass(eq=False)
class Flight:
    """One request. Only the orchestrator's loop touches it."""

    id: str
    """Unique in this run, whatever the caller's id is."""
    request: OmniRequest
    inputs: bytes
    """Encoded inputs of the entry stages, until they are opened."""
    stages: frozenset[int]
    """The stages that take part."""
    entries: tuple[int, ...]
    """Those that no other stage feeds."""
    finals: frozenset[int]
    """Stages whose output the caller gets."""
    arrived: float
    """Loop time."""
    deadline: float
    """Loop time."""
    events: asyncio.Queue[tuple[StageProcess, Output] | OmniError] = field(default_factory=asyncio.Queue)
    """What the caller has not taken yet. Bounded by the stages, which hold outputs back until earlier ones were taken."""
    opened: dict[int, StageProcess] = field(default_factory=dict)
    """The replica of each stage that knows the request; it stays the same for all chunks (DV-10)."""
    places: dict[int, StageProcess] = field(default_factory=dict)
    """The replicas that work for it: where it is opened and not done."""
    finished: set[int] = field(default_factory=set)
    """Final stages whose last output came."""
    finish_reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    feed: Feed | None = None
    """Where further input comes from while it runs; None for a request whose input is whole."""
    is_running: bool = False
    """Whether the entry stages were opened."""
    ended: bool = False
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """By purpose: `deadline`, `queue`, `stall`."""
    moved: float = 0.0
    """Loop time of the last sign that a stage works on it."""
    under_way: Counter[int] = field(default_factory=Counter)
    """Chunks that a stage was told of and has not taken yet."""
    done_stages: set[int] = field(default_factory=set)
    """Stages that have handed on all they make."""

    @classmethod
    def begin(cls, name: str, request: OmniRequest, inputs: bytes, config: PipelineConfig, now: float) -> Flight:
        """Return a request that has just come, with the stages that it needs."""
        wanted = [stage.stage_id for stage in config.stages if stage.final_output]
        finals = frozenset(stage_id for stage_id in wanted if not request.outputs or stage_id in request.outputs)
        stages = config.ancestors(finals)
        entries = tuple(stage_id for stage_id in sorted(stages) if not config.stage(stage_id).input_sources)
        return cls(name, request, inputs, stages, entries, finals, arrived=now, deadline=now + request.timeout_s)

    def set_timer(self, purpose: str, timer: asyncio.TimerHandle) -> None:
        """Remember a timer in the place of the one that had this purpose."""
        self.stop_timer(purpose)
        self.timers[purpose] = timer

    def stop_timer(self, purpose: str) -> None:
        """Cancel the timer with this purpose, if there is one."""
        if (timer := self.timers.pop(purpose, None)) is not None:
            timer.cancel()

    def note(self, stage_id: int, message: FromHost, now: float) -> None:
        """Remember what a stage did."""
        self.moved = now
        match message:
            case Chunk(to_stage=to_stage, final=final):
                self.under_way[to_stage] += 1
                if final:
                    self.done_stages.add(stage_id)
            case Consumed(to_stage=to_stage):
                self.under_way[to_stage] -= 1
            case Output(finished=True):
                self.done_stages.add(stage_id)

    def idle_s(self, now: float, since: float) -> float:
        """Return for how long, from `since` on, no stage did anything though it could: not while there are outputs to take."""
        return 0.0 if not self.events.empty() else now - max(self.moved, since)

    def silent_stage(self) -> StageProcess:
        """Return the stage that everything waits for: the last one with chunks to take, else the first that is not done."""
        for stage_id in sorted(self.opened, reverse=True):
            if self.under_way[stage_id] > 0:
                return self.opened[stage_id]
        unfinished = [stage_id for stage_id in sorted(self.opened) if stage_id not in self.done_stages]
        return self.opened[unfinished[0] if unfinished else max(self.opened)]

    def note_end(self, message: Chunk | Output) -> None:
        """Remember why a stage stopped. It is rarely the last stage that decides; a limit reached anywhere is what counts."""
        if message.finish_reason and self.finish_reason != "length":
            self.finish_reason = message.finish_reason
        self.metrics.update(message.metrics)


def encode_inputs(request: OmniRequest, limit: int) -> bytes:
    """Return a request's inputs as they travel.

    Raises:
        RequestError: They cannot, or are longer than `limit` bytes.
    """
    try:
        inputs = encode_payload(request.inputs)
    except ServiceError as error:
        raise RequestError(error.message, hint=error.hint, param="prompt") from error
    if len(inputs) > limit:
        raise RequestError(f"inputs of {len(inputs)} bytes are more than {limit}", param="prompt")
    return inputs
