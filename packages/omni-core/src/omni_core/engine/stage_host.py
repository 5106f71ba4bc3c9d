"""The stage host: runs one replica of one stage in a process of its own, and is its end of the channel to the orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from omni_core.allocator import return_free_pages
from omni_core.engine.call_desk import CallDesk
from omni_core.engine.channel import Channel
from omni_core.engine.edge import HandOver, Inlet, Outlet, Place, Window
from omni_core.engine.heart import Heart
from omni_core.engine.messages import (
    READER,
    Abort,
    Call,
    Consumed,
    Died,
    Failure,
    Fault,
    Forget,
    Open,
    Output,
    Push,
    Shutdown,
    ToHost,
    request_fault,
)
from omni_core.errors import DeadlineError, RequestError, ServiceError, StageDeadError
from omni_core.observe.stage import OutputMeter
from omni_core.payload import decode_payload, encode_payload
from omni_core.runner import StageInput, StageOutput, StageRunner
from omni_core.stage import ResolvedStage

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
TIDY_S = 30.0
"""How often a stage that has worked gives free memory back: what a model computes with is large, comes in many sizes and lies
among small things that stay, so that the memory of a stage under load grew by 4 MiB in a minute."""
OUTPUT_WINDOW = 64
"""Pieces that a request's caller may leave unread before the stage holds further ones back."""
EXIT_ENGINE_DEAD = 4
EXIT_ORPHANED = 5


@dataclass
class _Request:
    """One request in this stage."""

    request_id: str
    deadline: float
    hand_overs: dict[int, HandOver]
    outputs: Window | None
    pushes: asyncio.Queue[Push] = field(default_factory=asyncio.Queue)
    received: dict[int, int] = field(default_factory=dict)
    """Chunks fetched so far, by producer."""
    ended_sources: set[int] = field(default_factory=set)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    moved: bool = False
    """Whether the runner did something for it since the last heartbeat."""
    ran: bool = False
    """Whether the runner's last output went out."""
    fed: bool = False
    """Whether every chunk for it was acknowledged."""

    @property
    def done(self) -> bool:
        """Whether nothing more comes for it and its consumers have fetched what it made."""
        windows = [hand_over.window for hand_over in self.hand_overs.values()]
        return self.ran and self.fed and all(window.acknowledged == window.sent for window in windows)


class StageHost:
    """Open, feed and end requests in a runner, and hand on what it makes.

    Args:
        stage: The stage.
        runner: Its runner, not yet started.
        place: Where this process runs.
        channel: The connection to the orchestrator.
        stream_slots: Requests whose chunks are worked on at once, each from its first to its last; 0 is no limit.
    """

    def __init__(
        self, stage: ResolvedStage, runner: StageRunner, place: Place, channel: Channel[ToHost], *, stream_slots: int = 0
    ) -> None:
        self.stage = stage
        self.runner = runner
        self.requests: dict[str, _Request] = {}
        self._channel = channel
        self._where = f"stage {stage.name}"
        self._outlets = {edge.to_stage: Outlet(stage, edge, place, runner.metrics) for edge in stage.outputs}
        self._inlets = {edge.from_stage: Inlet(edge, place, runner.metrics) for edge in stage.inputs}
        self._sources = set(self._inlets) or {READER}
        """Who feeds a request: the stages before this one, or, while it runs, its caller."""
        self._slots = asyncio.Semaphore(stream_slots) if stream_slots else contextlib.nullcontext()
        self._stopping = asyncio.Event()
        self._fatal: Fault | None = None
        self._worked = False
        """Whether a request was opened since memory was given back."""
        self._orphaned = False
        """Whether the orchestrator has left without having said that this process shall stop."""
        self._aborts: set[asyncio.Task[None]] = set()
        self._calls = CallDesk(runner, self._where, self._send)
        self._heart = Heart(runner, self._where, self._send, self._die)
        self._meter = OutputMeter(runner.metrics, {})

    async def start(self) -> Mapping[str, Any]:
        """Load the model and build the connectors; return the runner's facts."""
        facts = await self.runner.start()
        self._heart.know(facts)
        self._meter = OutputMeter(self.runner.metrics, facts)
        # Both ends: a store that is not there must fail the start, not the first request.
        for end in (*self._outlets.values(), *self._inlets.values()):
            await end.connect()
        return facts

    async def serve(self) -> int:
        """Serve until told to stop, until the orchestrator or the engine is gone; return the process's exit code."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        work = (self._receive(), self._heart.run(self._load, self._moved), self._tidy())
        helpers = [asyncio.create_task(helper) for helper in work]
        await self._stopping.wait()
        for helper in helpers:
            helper.cancel()
        self._calls.close()
        # The reason leaves first: what is forgotten below is missed by consumers, whose complaint must not be heard before it.
        if self._fatal is not None:
            logger.error("%s: the engine is gone: %s", self._where, self._fatal.message)
            with contextlib.suppress(ConnectionError, ServiceError):
                await self._channel.send(Died(self._fatal))
        for request_id in list(self.requests):
            self._forget(request_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._close()
        if self._fatal is not None:
            return EXIT_ENGINE_DEAD
        return EXIT_ORPHANED if self._orphaned else 0

    async def _close(self) -> None:
        try:
            await self.runner.stop()
        except Exception:  # a runner may raise anything; the rest must be closed all the same
            logger.exception("%s: stopping the engine failed", self._where)
        for end in (*self._outlets.values(), *self._inlets.values()):
            await end.close()
        await self._channel.close()

    async def _receive(self) -> None:
        try:
            while (message := await self._channel.receive()) is not None:
                self._take(message)
            self._part()
        except ServiceError:
            logger.exception("%s: the orchestrator's messages cannot be read", self._where)
        finally:
            self._stopping.set()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_S)
            if self._worked:
                self._worked = False
                await asyncio.to_thread(return_free_pages)

    def _take(self, message: ToHost) -> None:
        match message:
            case Open():
                self._open(message)
            case Push():
                if request := self.requests.get(message.request_id):
                    request.pushes.put_nowait(message)
            case Consumed():
                self._acknowledge(message)
            case Abort():
                self._forget(message.request_id)
            case Call():
                self._calls.take(message)
            case Forget():
                for request_id in list(self.requests):
                    self._forget(request_id)
            case Shutdown():
                self._stopping.set()

    def _moved(self) -> list[str]:
        moved = [request for request in self.requests.values() if request.moved]
        for request in moved:
            request.moved = False
        return [request.request_id for request in moved]

    def _load(self) -> dict[str, Any]:
        ends = (*self._outlets.values(), *self._inlets.values())
        return {
            "requests": len(self.requests),
            "aborting": len(self._aborts),
            "payloads": sum(end.in_flight for end in ends),
            **self.runner.load(),
        }

    async def _send(self, message: Any) -> None:
        try:
            await self._channel.send(message)
        except (ConnectionError, DeadlineError):
            self._part()

    def _part(self) -> None:
        """Stop because the orchestrator is gone, unless this process stops already."""
        self._orphaned = self._orphaned or not self._stopping.is_set()
        self._stopping.set()

    def _die(self, error: StageDeadError) -> None:
        self._fatal = self._fatal or Fault.of(error, where=self._where)
        self._stopping.set()

    # One request

    def _open(self, message: Open) -> None:
        self._worked = True
        deadline = asyncio.get_running_loop().time() + message.timeout_s
        request = _Request(
            message.request_id,
            deadline,
            {to: HandOver.begin(self._outlets[to], message.request_id, deadline) for to in message.consumers},
            Window(OUTPUT_WINDOW) if message.outputs else None,
            fed=not message.streaming,
        )
        self.requests[message.request_id] = request
        inputs = decode_payload(message.inputs) if message.inputs else {}
        begin = StageInput(
            message.request_id,
            inputs,
            message.sampling,
            message.streaming,
            message.lora,
            message.trace,
            captures=bool(message.consumers),
        )
        # The order matters: the runner knows the request when the first push comes, because tasks start in turn.
        self._spawn(request, lambda: self._run_request(request, begin))
        if message.streaming:
            self._spawn(request, lambda: self._feed(request))

    def _spawn(self, request: _Request, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        request.tasks.append(asyncio.create_task(self._guard(request, work)))

    async def _guard(self, request: _Request, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except StageDeadError as error:
            self._die(error)
        except Exception as error:  # a request's failure is its caller's to hear of, whatever it is
            if self.requests.get(request.request_id) is request:
                # A refused request is its caller's matter; anything else is a fault to mend, and its place is known here only.
                level = logging.DEBUG if isinstance(error, RequestError) else logging.ERROR
                logger.log(level, "%s: request %s failed", self._where, request.request_id, exc_info=error)
                # In this order: the cause is heard before a consumer misses what is forgotten.
                await self._send(Failure(request.request_id, request_fault(error, where=self._where)))
                self._forget(request.request_id)

    async def _run_request(self, request: _Request, begin: StageInput) -> None:
        async with contextlib.aclosing(cast("Any", self.runner.run(begin))) as outputs:
            async for output in outputs:
                request.moved = True
                self._meter.note(output)
                await self._hand_on(request, output)
                if output.finished:
                    break
            else:
                raise ServiceError("its outputs ended before the last one", where=self._where)
        request.ran = True
        self._forget_if_done(request)

    async def _hand_on(self, request: _Request, output: StageOutput) -> None:
        for hand_over in request.hand_overs.values():
            if (chunk := await hand_over.give(output)) is not None:
                await self._send(chunk)
        if request.outputs is not None:
            await self._send(
                Output(
                    request.request_id,
                    await request.outputs.enter(request.deadline, "output for the caller"),
                    encode_payload({name: value for name, value in output.tensors.items() if name not in output.internal}),
                    output.text,
                    output.token_ids,
                    output.finished,
                    output.finish_reason,
                    output.metrics,
                    output.reply,
                )
            )

    async def _feed(self, request: _Request) -> None:
        sources = self._sources
        push = await request.pushes.get()
        async with self._slots:
            await self._take_chunk(request, push)
            while request.ended_sources != sources:
                await self._take_chunk(request, await request.pushes.get())
        request.fed = True
        self._forget_if_done(request)

    async def _take_chunk(self, request: _Request, push: Push) -> None:
        if push.sequence != request.received.get(push.from_stage, 0):
            missing = request.received.get(push.from_stage, 0)
            raise ServiceError(f"chunk {missing} from stage {push.from_stage} is missing", where=self._where)
        if push.from_stage == READER:
            payload = decode_payload(push.handle)
        else:
            payload = await self._inlets[push.from_stage].fetch(push.handle, request.deadline)
        request.moved = True
        request.received[push.from_stage] = push.sequence + 1
        if push.final:
            request.ended_sources.add(push.from_stage)
        await self.runner.push(request.request_id, payload, request.ended_sources == self._sources)
        await self._send(Consumed(request.request_id, push.from_stage, self.stage.stage_id, push.sequence))

    def _acknowledge(self, message: Consumed) -> None:
        request = self.requests.get(message.request_id)
        if request is None:
            return
        if message.to_stage == READER:
            if request.outputs is not None:
                request.outputs.acknowledge()
        elif hand_over := request.hand_overs.get(message.to_stage):
            hand_over.window.acknowledge()
        self._forget_if_done(request)

    def _forget_if_done(self, request: _Request) -> None:
        if request.done and self.requests.get(request.request_id) is request:
            self._forget(request.request_id)

    def _forget(self, request_id: str) -> None:
        request = self.requests.pop(request_id, None)
        if request is None or request.done:
            return
        current = asyncio.current_task()
        for task in request.tasks:
            if task is not current:
                task.cancel()
        for end in (*(hand_over.outlet for hand_over in request.hand_overs.values()), *self._inlets.values()):
            end.forget(request_id)
        task = asyncio.create_task(self._abort(request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, request_id: str) -> None:
        try:
            await self.runner.abort(request_id)
        except Exception:  # a runner may raise anything; its caller has been answered
            logger.exception("%s: aborting request %s failed", self._where, request_id)
