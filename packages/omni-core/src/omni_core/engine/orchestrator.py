"""The orchestrator: starts a pipeline's stages, takes requests through them, and ends each request exactly once.

It lives in the server's process, on one asyncio loop. Everything that changes a request happens in synchronous methods of that
loop, called by a message, a timer or the caller, so no two of them can be half done at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any

from omni_core.deploy.devices import replica_devices
from omni_core.engine import fork_server
from omni_core.engine.channel import MAX_MESSAGE_BYTES
from omni_core.engine.messages import READER, Abort, Chunk, Consumed, Died, Failure, FromHost, Open, Output, Push
from omni_core.engine.outputs import typed_output
from omni_core.engine.run_dir import RunDir
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.errors import (
    DeadlineError,
    NotFoundError,
    OmniError,
    OverloadedError,
    RequestError,
    ServiceError,
    StageStartError,
)
from omni_core.payload import encode_payload
from omni_core.platforms import CPU, Platform
from omni_core.request import OmniOutput, OmniRequest
from omni_core.stage import ResolvedPipeline

logger = logging.getLogger(__name__)

STAGE_INIT_TIMEOUT_S = 300.0
INIT_TIMEOUT_S = 600.0
DRAIN_TIMEOUT_S = 30.0
MAX_INPUT_BYTES = MAX_MESSAGE_BYTES // 2
"""Longest inputs of a request, encoded."""


@dataclass(eq=False)
class _Flight:
    """One request on its way."""

    id: str
    """Unique in this run, whatever the caller's id is."""
    request: OmniRequest
    stages: frozenset[int]
    """The stages that take part."""
    finals: frozenset[int]
    """Stages whose output the caller gets."""
    started: float
    deadline: float
    events: asyncio.Queue[tuple[StageProcess, Output] | OmniError] = field(default_factory=asyncio.Queue)
    """What the caller has not taken yet. Bounded by the stages, which hold outputs back until earlier ones were taken."""
    opened: dict[int, StageProcess] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    finish_reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    ended: bool = False
    timer: asyncio.TimerHandle | None = None


class Orchestrator:
    """Run one resolved pipeline.

    Args:
        pipeline: What to run.
        platform: How its processes start and are shown their devices.
        stage_init_timeout_s: Longest start of one stage.
        init_timeout_s: Longest start of all.
    """

    def __init__(
        self,
        pipeline: ResolvedPipeline,
        *,
        platform: Platform = CPU,
        stage_init_timeout_s: float = STAGE_INIT_TIMEOUT_S,
        init_timeout_s: float = INIT_TIMEOUT_S,
    ) -> None:
        self.pipeline = pipeline
        self._platform = platform
        self._stage_init_timeout_s = stage_init_timeout_s
        self._init_timeout_s = init_timeout_s
        self._context: BaseContext
        self._run_dir: RunDir | None = None
        self._replicas: dict[int, list[StageProcess]] = {}
        self._turns: dict[int, itertools.count[int]] = {}
        self._flights: dict[str, _Flight] = {}
        self._numbers = itertools.count()
        self._accepting = False
        self._idle = asyncio.Event()
        self._idle.set()

    # Start and stop

    def prepare(self) -> None:
        """Begin what takes long and needs no loop: the fork server's imports. `start` does it, too."""
        if self._platform.start_method == "forkserver":
            modules = [name for stage in self.pipeline.stages for name in stage.modules]
            self._context = fork_server.begin(tuple(dict.fromkeys(modules)))
        else:
            self._context = fork_server.spawner()

    async def start(self) -> None:
        """Start every stage at once and return when all are ready.

        Raises:
            StageStartError: A stage did not become ready. Everything that was started is stopped again.
        """
        self.prepare()
        self._run_dir = run_dir = RunDir.create()
        for stage in self.pipeline.stages:
            self._turns[stage.stage_id] = itertools.count()
            self._replicas[stage.stage_id] = [
                StageProcess(stage, replica, run_dir, self._context, self._visible(devices), self._take, self._note_death)
                for replica, devices in enumerate(replica_devices(stage))
            ]
        try:
            async with asyncio.timeout(self._init_timeout_s):
                await _all_or_first_error(process.start(self._stage_init_timeout_s) for process in self._processes())
        except TimeoutError:
            late = ", ".join(p.name for p in self._processes() if p.state is StageState.STARTING)
            await self.stop(0)
            raise StageStartError(
                f"stages {late} were not ready within {self._init_timeout_s:g} s", hint="raise the init timeout"
            ) from None
        except BaseException:
            await self.stop(0)
            raise
        self._accepting = True

    async def stop(self, drain_timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Let running requests finish for a while, end the others, stop every stage. May be called twice."""
        self._accepting = False
        try:
            async with asyncio.timeout(drain_timeout_s):
                await self._idle.wait()
        except TimeoutError:
            for flight in list(self._flights.values()):
                self._end(flight, ServiceError("the server stopped before the request was finished"))
        finally:
            await asyncio.gather(*(process.stop() for process in self._processes()))
            if self._run_dir is not None:
                self._run_dir.remove()

    def _visible(self, devices: str | None) -> dict[str, str]:
        name = self._platform.visible_devices_env
        return {name: devices} if name and devices is not None else {}

    def _processes(self) -> list[StageProcess]:
        return [process for replicas in self._replicas.values() for process in replicas]

    # What callers use

    async def submit(self, request: OmniRequest) -> AsyncIterator[OmniOutput]:
        """Take a request through the pipeline; yield its outputs, the last one with `finished`.

        Closing the iterator aborts the request in every stage. Outputs that are not taken hold the final stage back, and
        through the windows of the edges the stages before it.

        Raises:
            RequestError: A stage refused the request.
            StageDeadError: A stage that it needs is dead.
            DeadlineError: It took longer than `request.timeout_s`.
            ServiceError: A stage failed.
        """
        flight = self._admit(request)
        try:
            while True:
                event = await flight.events.get()
                if isinstance(event, OmniError):
                    raise event
                process, message = event
                process.post(Consumed(flight.id, process.stage.stage_id, READER, message.sequence))
                output = self._typed(flight, process, message)
                yield output
                if output.finished:
                    return
        finally:
            self._end(flight)

    def abort(self, request_id: str) -> bool:
        """End every running request with this id; return whether there was one."""
        found = [flight for flight in self._flights.values() if flight.request.request_id == request_id]
        for flight in found:
            self._end(flight, NotFoundError(f"request {request_id!r} was aborted"))
        return bool(found)

    def health(self) -> Mapping[str, Any]:
        """Return `healthy`, the number of requests and, for each stage replica, its state and load."""
        stages = [
            {
                "stage_id": process.stage.stage_id,
                "name": process.stage.topology.model_stage,
                "replica": process.replica,
                "state": str(process.state),
                "reason": process.reason,
                "pid": process.pid,
                **process.load,
            }
            for process in self._processes()
        ]
        healthy = self._accepting and all(
            any(process.state is StageState.READY for process in replicas) for replicas in self._replicas.values()
        )
        return {"healthy": healthy, "requests": len(self._flights), "stages": stages}

    @property
    def run_dir(self) -> str | None:
        """The folder with sockets and logs, once there is one."""
        return self._run_dir.path if self._run_dir is not None else None

    def facts(self, stage_id: int) -> Mapping[str, Any]:
        """Return what a stage told when it became ready, such as `sample_rate`."""
        return self._replicas[stage_id][0].facts

    # A request's life

    def _admit(self, request: OmniRequest) -> _Flight:
        if not self._accepting:
            raise OverloadedError("the server is not taking requests", hint="it is starting or stopping")
        finals = frozenset(
            s.stage_id
            for s in self.pipeline.config.stages
            if s.final_output and (s.stage_id in request.outputs or not request.outputs)
        )
        stages = self.pipeline.config.ancestors(finals)
        inputs = _encoded(request)
        for stage_id in stages:
            self._living(stage_id)
        loop = asyncio.get_running_loop()
        flight = _Flight(
            f"{self._run_dir.run_id if self._run_dir else ''}-{next(self._numbers)}",
            request,
            stages,
            finals,
            started=time.monotonic(),
            deadline=loop.time() + request.timeout_s,
        )
        self._flights[flight.id] = flight
        self._idle.clear()
        late = DeadlineError(f"the request was not finished within {request.timeout_s:g} s")
        flight.timer = loop.call_later(request.timeout_s, self._end, flight, late)
        entries = [stage_id for stage_id in sorted(stages) if not self.pipeline.config.stage(stage_id).input_sources]
        try:
            for stage_id in entries:
                self._open(flight, stage_id, inputs)
        except (TypeError, ValueError, OverflowError) as error:
            self._end(flight)
            raise RequestError(f"a sampling parameter cannot be sent: {error}", param="sampling_params_list") from error
        return flight

    def _open(self, flight: _Flight, stage_id: int, inputs: bytes = b"") -> StageProcess:
        process = self._choose(stage_id)
        flight.opened[stage_id] = process
        config = self.pipeline.config
        process.post(
            Open(
                flight.id,
                inputs,
                dict(flight.request.sampling.get(stage_id, process.stage.sampling)),
                streaming=bool(config.stage(stage_id).input_sources),
                timeout_s=flight.deadline - asyncio.get_running_loop().time(),
                consumers=[s.stage_id for s in config.consumers(stage_id) if s.stage_id in flight.stages],
                outputs=stage_id in flight.finals,
            )
        )
        return process

    def _choose(self, stage_id: int) -> StageProcess:
        """Return the stage's next living replica in turn."""
        living = self._living(stage_id)
        return living[next(self._turns[stage_id]) % len(living)]

    def _living(self, stage_id: int) -> list[StageProcess]:
        replicas = self._replicas[stage_id]
        living = [process for process in replicas if process.state is StageState.READY]
        if not living:
            raise replicas[0].dead_error()
        return living

    def _end(self, flight: _Flight, error: OmniError | None = None) -> None:
        """End a request: the one way out, whoever takes it first."""
        if flight.ended:
            return
        flight.ended = True
        del self._flights[flight.id]
        if flight.timer is not None:
            flight.timer.cancel()
        for process in flight.opened.values():
            process.post(Abort(flight.id))
        if error is not None:
            flight.events.put_nowait(error)
        if not self._flights:
            self._idle.set()

    # What stages say

    def _take(self, process: StageProcess, message: FromHost) -> None:
        if isinstance(message, Died):
            process.kill(message.fault.message)
            return
        flight = self._flights.get(getattr(message, "request_id", ""))
        if flight is None:
            # Late news of a request that has ended; its stages were told to forget it.
            return
        match message:
            case Chunk():
                self._route(flight, process, message)
            case Consumed():
                if (producer := flight.opened.get(message.from_stage)) is not None:
                    producer.post(message)
            case Output():
                self._deliver(flight, process, message)
            case Failure():
                self._end(flight, message.fault.error())

    def _route(self, flight: _Flight, process: StageProcess, message: Chunk) -> None:
        self._note_end(flight, message)
        try:
            consumer = flight.opened.get(message.to_stage) or self._open(flight, message.to_stage)
        except OmniError as error:
            self._end(flight, error)
            return
        consumer.post(Push(flight.id, process.stage.stage_id, message.sequence, message.handle, message.final))

    def _deliver(self, flight: _Flight, process: StageProcess, message: Output) -> None:
        self._note_end(flight, message)
        flight.metrics.setdefault("ttfa_s", time.monotonic() - flight.started)
        if message.finished:
            flight.finished.add(process.stage.stage_id)
        flight.events.put_nowait((process, message))
        if flight.finished == flight.finals:
            flight.metrics["duration_s"] = time.monotonic() - flight.started
            self._end(flight)

    def _note_end(self, flight: _Flight, message: Chunk | Output) -> None:
        # The stage that decides when to stop is rarely the last one. A limit reached anywhere is what the caller must know.
        if message.finish_reason and flight.finish_reason != "length":
            flight.finish_reason = message.finish_reason
        flight.metrics.update(message.metrics)

    def _typed(self, flight: _Flight, process: StageProcess, message: Output) -> OmniOutput:
        last = flight.finished == flight.finals and flight.events.empty()
        return typed_output(
            process.stage.topology,
            process.facts,
            message,
            request_id=flight.request.request_id,
            finished=last,
            finish_reason=(flight.finish_reason or "stop") if last else None,
            metrics=flight.metrics if last else {},
        )

    def _note_death(self, process: StageProcess) -> None:
        stage_id = process.stage.stage_id
        survivors = any(other.state is StageState.READY for other in self._replicas[stage_id])
        for flight in list(self._flights.values()):
            user = flight.opened.get(stage_id)
            if user is process or (user is None and stage_id in flight.stages and not survivors):
                self._end(flight, process.dead_error())


def _encoded(request: OmniRequest) -> bytes:
    try:
        inputs = encode_payload(request.inputs)
    except ServiceError as error:
        raise RequestError(error.message, hint=error.hint, param="prompt") from error
    if len(inputs) > MAX_INPUT_BYTES:
        raise RequestError(f"inputs of {len(inputs)} bytes are more than {MAX_INPUT_BYTES}", param="prompt")
    return inputs


async def _all_or_first_error(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for pending in tasks:
            pending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
