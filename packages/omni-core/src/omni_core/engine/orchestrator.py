"""The orchestrator: starts a pipeline's stages, takes requests through them, and ends each request exactly once.

It lives in the server's process, on one asyncio loop. Everything that changes a request happens in synchronous methods of that
loop, called by a message, a timer or the caller, so no two of them can be half done at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from omni_core.deploy.lora import ADAPTER_STAGE
from omni_core.engine import fork_server
from omni_core.engine.admission import Admission
from omni_core.engine.channel import MAX_MESSAGE_BYTES
from omni_core.engine.control import Control
from omni_core.engine.departures import Departures
from omni_core.engine.feed import Feed
from omni_core.engine.flight import Flight, encode_inputs
from omni_core.engine.messages import (
    READER,
    Abort,
    Chunk,
    Consumed,
    Died,
    Failure,
    FromHost,
    Measured,
    Open,
    Output,
    Progress,
    Push,
    Reply,
)
from omni_core.engine.options import EngineOptions
from omni_core.engine.outputs import output_of
from omni_core.engine.replicas import Launcher, Replica, ReplicaPool, make_pool
from omni_core.engine.run_dir import RunDir
from omni_core.engine.stage_process import StageProcess
from omni_core.engine.starting import start_all
from omni_core.engine.witnesses import Witnesses
from omni_core.errors import DeadlineError, NotFoundError, OmniError, OverloadedError, RequestError, ServiceError
from omni_core.observe.observer import Observer
from omni_core.platforms import CPU, Platform
from omni_core.request import OmniOutput, OmniRequest
from omni_core.stage import ResolvedPipeline

if TYPE_CHECKING:
    from omni_core.engine.remote.head import Head

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 30.0
MAX_INPUT_BYTES = MAX_MESSAGE_BYTES // 2
"""Longest inputs of a request, encoded."""


class Orchestrator:
    """Run one resolved pipeline.

    Args:
        pipeline: What to run.
        options: Deadlines and limits.
        platform: How its processes start and are shown their devices.
        observer: Who is told of every request.
        head: Whom the workers of other hosts register with; None where every stage is started here.
    """

    def __init__(
        self,
        pipeline: ResolvedPipeline,
        options: EngineOptions | None = None,
        *,
        platform: Platform = CPU,
        observer: Observer | None = None,
        head: Head | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.options = options or EngineOptions()
        self._platform = platform
        self._observer = observer or Observer()
        self._head = head
        self._context: BaseContext
        self._run_dir: RunDir | None = None
        self._pools: dict[int, ReplicaPool] = {}
        self._admission = Admission(self._pools, self.options, self._begin, self._end)
        self._flights: dict[str, Flight] = {}
        self.control = Control(self._pools)
        """Calls of operators to stages."""
        self._departures = Departures(self._pools, self._flights)
        self.witnesses = Witnesses(returns=[self._admission.let_in, self._departures.look])
        """Who is told of replicas that go and come back."""
        self._numbers = itertools.count()
        self._accepting = False
        self._idle = asyncio.Event()
        self._idle.set()

    # Start and stop

    def prepare(self) -> None:
        """Begin what takes long and needs no loop: the fork server's imports. `start` does it, too."""
        here = [stage for stage in self.pipeline.stages if self._head is None or not self._head.is_remote(stage.stage_id)]
        self._context = fork_server.context_for(self._platform, here)

    async def start(self) -> None:
        """Start every stage, those on separate devices at once, and return when all are ready.

        Raises:
            StageStartError: A stage did not become ready. Everything that was started is stopped again.
        """
        self.prepare()
        self._run_dir = RunDir.create()
        try:
            slots = int(self.pipeline.values.get("active_stream_window") or 0)
            meeting = None if self._head is None else await self._head.open()
            launcher = Launcher(self._run_dir, self._context, self._platform, self.options, slots, meeting, self.control)
            told = (self._take, self._note_death, self.witnesses.returned)
            for stage in self.pipeline.stages:
                self._pools[stage.stage_id] = make_pool(stage, launcher, self._head, *told)
            await start_all(self._replicas(), self.options.init_timeout_s, self.witnesses)
        except BaseException:  # cancelled or failed, a start leaves nothing; raised again
            await self.stop(0)
            raise
        self._accepting = True

    async def stop(self, drain_timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Let running requests finish for a while, end the others, stop every stage. May be called twice."""
        self._accepting = False
        self.control.close()
        try:
            async with asyncio.timeout(drain_timeout_s):
                await self._idle.wait()
        except TimeoutError:
            for flight in list(self._flights.values()):
                self._end(flight, ServiceError("the server stopped before the request was finished"))
        finally:
            await asyncio.gather(*(pool.stop() for pool in self._pools.values()))
            if self._head is not None:
                await self._head.close()
            if self._run_dir is not None:
                self._run_dir.remove()

    def _replicas(self) -> list[Replica]:
        return [replica for pool in self._pools.values() for replica in pool.replicas]

    # What callers use

    async def submit(self, request: OmniRequest, feed: Feed | None = None) -> AsyncIterator[OmniOutput]:
        """Take a request through the pipeline; yield its outputs, the last one with `finished`.

        With `feed`, the entry stage gets further input by it while the request runs.

        Closing the iterator aborts the request in every stage. Outputs that are not taken hold the final stage back, and
        through the windows of the edges the stages before it.

        Raises:
            RequestError: A stage refused the request.
            OverloadedError: There is no room for it, and too many wait already or it waited too long.
            StageDeadError: A stage that it needs is dead.
            DeadlineError: It took longer than `request.timeout_s`, or a stage did nothing for the stall timeout.
            ServiceError: A stage failed.
        """
        flight = self._accept(request, feed)
        try:
            while True:
                event = await flight.events.get()
                if isinstance(event, OmniError):
                    raise event
                process, message = event
                flight.moved = asyncio.get_running_loop().time()
                process.post(Consumed(flight.id, process.stage.stage_id, READER, message.sequence))
                output = output_of(flight, process, message)
                yield output
                if output.finished:
                    return
        finally:
            self._end(flight)

    def abort(self, request_id: str, feed: Feed | None = None) -> bool:
        """End every running or waiting request with this id, or the one of them with `feed`; return whether there was one."""
        named = [flight for flight in self._flights.values() if flight.request.request_id == request_id]
        found = [flight for flight in named if feed in (None, flight.feed)]
        for flight in found:
            self._end(flight, NotFoundError(f"request {request_id!r} was aborted"), aborted=True)
        return bool(found)

    def health(self) -> Mapping[str, Any]:
        """Return `healthy`, the numbers of requests, and for each stage replica its state, load and restarts."""
        healthy = self._accepting and all(pool.ready for pool in self._pools.values())
        return {
            "healthy": healthy,
            "requests": len(self._flights),
            "queued": self._admission.queued,
            "stages": [replica.health() for replica in self._replicas()],
        }

    @property
    def run_dir(self) -> str | None:
        """The folder with sockets and logs, once there is one."""
        return self._run_dir.path if self._run_dir is not None else None

    # A request's life

    def _accept(self, request: OmniRequest, feed: Feed | None) -> Flight:
        """Take a request in; it begins now or when there is room."""
        try:
            flight = self._flight(request)
            flight.feed = feed
        except OmniError as error:
            self._observer.refused(error)
            raise
        self._flights[flight.id] = flight
        self._observer.accepted(flight)
        self._idle.clear()
        late = DeadlineError(f"the request was not finished within {request.timeout_s:g} s")
        loop = asyncio.get_running_loop()
        flight.set_timer("deadline", loop.call_later(request.timeout_s, self._end, flight, late))
        try:
            self._admission.enter(flight)
        except OmniError as error:
            self._end(flight, error)
            raise
        return flight

    def _flight(self, request: OmniRequest) -> Flight:
        if not self._accepting:
            raise OverloadedError("the server is not taking requests", hint="it is starting or stopping")
        name = f"{self._run_dir.run_id if self._run_dir else ''}-{next(self._numbers)}"
        inputs = encode_inputs(request, MAX_INPUT_BYTES)
        flight = Flight.begin(name, request, inputs, self.pipeline.config, asyncio.get_running_loop().time())
        for stage_id in flight.stages:
            self._pools[stage_id].check(request.replicas.get(stage_id))
        return flight

    def _begin(self, flight: Flight) -> None:
        """Open a request in its entry stages."""
        loop = asyncio.get_running_loop()
        flight.is_running, flight.moved = True, loop.time()
        self._observer.began(flight)
        inputs, flight.inputs = flight.inputs, b""
        try:
            for stage_id in flight.entries:
                self._open(flight, stage_id, inputs)
        except OmniError as error:
            self._end(flight, error)
        except (TypeError, ValueError, OverflowError) as error:
            self._end(flight, RequestError(f"a sampling parameter cannot be sent: {error}", param="sampling_params_list"))
        else:
            if flight.feed is not None:
                flight.feed.bind(flight)
            self._watch(flight)

    def _open(self, flight: Flight, stage_id: int, inputs: bytes = b"") -> StageProcess:
        process = self._pools[stage_id].choose(flight.request.replicas.get(stage_id))
        config = self.pipeline.config
        message = Open(
            flight.id,
            inputs,
            dict(flight.request.sampling.get(stage_id, process.stage.sampling)),
            streaming=bool(config.stage(stage_id).input_sources) or flight.feed is not None,
            timeout_s=flight.deadline - asyncio.get_running_loop().time(),
            consumers=[s.stage_id for s in config.consumers(stage_id) if s.stage_id in flight.stages],
            outputs=stage_id in flight.finals,
            trace=self._observer.opened(flight, process),
            lora=flight.request.lora if stage_id == ADAPTER_STAGE else None,
        )
        flight.opened[stage_id] = flight.places[stage_id] = process
        process.in_flight += 1
        process.post(message)
        return process

    def _watch(self, flight: Flight) -> None:
        """End a request for which no stage does anything; look again when that could be so."""
        limit = self.options.stall_timeout_s
        if flight.ended or limit is None:
            return
        loop = asyncio.get_running_loop()
        if self.control.paused or (flight.feed is not None and flight.feed.is_waiting):
            flight.moved = loop.time()
        idle_s = flight.idle_s(loop.time(), self.control.resumed_at)
        if idle_s < limit:
            flight.set_timer("stall", loop.call_later(limit - idle_s, self._watch, flight))
            return
        name = flight.silent_stage().name
        self._end(flight, DeadlineError(f"stage {name} did nothing for the request for {limit:g} s", where=f"stage {name}"))

    def _end(self, flight: Flight, error: OmniError | None = None, *, aborted: bool = False) -> None:
        """End a request: the one way out, whoever takes it first."""
        if flight.ended:
            return
        flight.ended = True
        del self._flights[flight.id]
        for purpose in list(flight.timers):
            flight.stop_timer(purpose)
        self._observer.ended(flight, error, aborted)
        if flight.feed is not None:
            flight.feed.close()
        for stage_id, process in flight.opened.items():
            self._leave(flight, stage_id)
            process.post(Abort(flight.id))
        if error is not None:
            flight.events.put_nowait(error)
        if not self._flights:
            self._idle.set()
        self._admission.leave(flight)
        self._departures.look()

    def _leave(self, flight: Flight, stage_id: int) -> None:
        """Give up a request's place in a stage."""
        if (process := flight.places.pop(stage_id, None)) is not None:
            process.in_flight -= 1

    # What stages say

    def _take(self, process: StageProcess, message: FromHost) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(message, Died):
            process.kill(message.fault.message)
            # At once, before its end is noticed: a consumer that misses what it held must not be heard first.
            self._end_users(process)
            return
        if isinstance(message, Reply):
            self.control.take(process, message)
            return
        if isinstance(message, Measured):
            self._observer.measured(process, message.changes)
            return
        if isinstance(message, Progress):
            for request_id in message.request_ids:
                if (moving := self._flights.get(request_id)) is not None:
                    moving.moved = now
            return
        flight = self._flights.get(getattr(message, "request_id", ""))
        if flight is None or flight.opened.get(process.stage.stage_id) is not process:
            # Late news of a request that has ended; its stages were told to forget it.
            return
        flight.note(process.stage.stage_id, message, now)
        self._observer.took(flight, process, message)
        match message:
            case Chunk():
                self._route(flight, process, message)
            case Consumed(from_stage=source) if source == READER:
                if flight.feed is not None:
                    flight.feed.acknowledge()
            case Consumed():
                if (producer := flight.opened.get(message.from_stage)) is not None:
                    producer.post(message)
            case Output():
                self._deliver(flight, process, message, now)
            case Failure():
                self._end(flight, message.fault.error())
        if process.stage.stage_id in flight.done_stages and process.stage.stage_id in flight.places:
            # The next one may begin here while later stages still work for this one.
            self._leave(flight, process.stage.stage_id)
            self._admission.let_in()

    def _route(self, flight: Flight, process: StageProcess, message: Chunk) -> None:
        flight.note_end(message)
        try:
            consumer = flight.opened.get(message.to_stage) or self._open(flight, message.to_stage)
        except OmniError as error:
            self._end(flight, error)
            return
        consumer.post(Push(flight.id, process.stage.stage_id, message.sequence, message.handle, message.final))

    def _deliver(self, flight: Flight, process: StageProcess, message: Output, now: float) -> None:
        flight.note_end(message)
        flight.metrics.setdefault("ttfa_s", now - flight.arrived)
        if message.finished:
            flight.finished.add(process.stage.stage_id)
        flight.events.put_nowait((process, message))
        if flight.finished == flight.finals:
            flight.metrics["duration_s"] = now - flight.arrived
            self._end(flight)

    def _note_death(self, process: StageProcess) -> None:
        """End the requests that a dead process knew, and those that need its stage while none of its replicas is ready."""
        self.control.note_death(process)
        self._observer.died(process)
        self._end_users(process)
        self.witnesses.died(process)
        stage_id = process.stage.stage_id
        if not self._pools[stage_id].ready:
            for flight in [f for f in self._flights.values() if stage_id in f.stages and stage_id not in f.opened]:
                self._end(flight, self._pools[stage_id].dead_error())

    def _end_users(self, process: StageProcess) -> None:
        hint = self._pools[process.stage.stage_id].hint_after(process)
        for flight in [f for f in self._flights.values() if f.opened.get(process.stage.stage_id) is process]:
            self._end(flight, process.dead_error(hint=hint))
