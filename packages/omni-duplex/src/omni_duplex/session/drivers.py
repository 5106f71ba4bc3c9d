"""Drive a model's stream: unit by unit, or turn by turn. What it yields goes to the session's mailbox."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import numpy as np

from omni_core.errors import OmniError
from omni_duplex.audio.framer import Framer
from omni_duplex.batcher import Batcher
from omni_duplex.errors import SERVER, DuplexError
from omni_duplex.model import AudioIn, Capabilities, DuplexStream, Fence, Output, Samples, TurnEnd
from omni_duplex.session import events as ev
from omni_duplex.session.clock import Clock, Handle

logger = logging.getLogger(__name__)

UNIT_TIMEOUT_S = 30.0
"""Seconds that a unit model may take over one unit; then its session ends."""
CANCEL_TIMEOUT_S = 0.25
"""Seconds that a stream may take to drop an answer before the session goes on without waiting for it."""

Post = Callable[[ev.Event], Awaitable[None]]


def as_duplex_error(error: Exception) -> DuplexError:
    """Return a model's error as what a client is told."""
    if isinstance(error, DuplexError):
        return error
    if isinstance(error, OmniError):
        return DuplexError("engine_error", str(error), error.param, kind=SERVER, retryable=error.http_status in (429, 503))
    return DuplexError("internal_error", f"the model failed: {error!r}", kind=SERVER)


class Driver(ABC):
    """Run one stream of a session; what it makes is posted as events."""

    def __init__(self, stream: DuplexStream, post: Post) -> None:
        self._stream = stream
        self._post = post
        self._tasks: set[asyncio.Task[Any]] = set()

    @abstractmethod
    def interrupt(self, fence: Fence) -> None:
        """Drop what is under way for older fences."""

    def feed(self, pcm: Samples) -> None:
        """Let the model hear audio."""
        raise TypeError("a turn model hears nothing between turns")

    def respond(self, event: ev.Respond) -> None:
        """Let the model answer."""
        raise TypeError("a unit model decides by itself when it answers")

    async def stop(self) -> None:
        """End everything under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _forward(self, outputs: AsyncIterator[Output], fence: Fence) -> bool:
        """Post what a model yields, or that it failed; return whether an answer of a turn has come to its end by that."""
        ended = False
        try:
            async with aclosing(cast("Any", outputs)) as found:
                async for output in found:
                    ended = ended or isinstance(output, TurnEnd)
                    await self._post(ev.Produced(output))
        except Exception as error:  # a plugin's code may raise anything; it costs this session alone
            logger.exception("session %s: the model failed", fence.session_id)
            await self._post(ev.Failed(fence, as_duplex_error(error)))
            return True
        return ended


class TurnDriver(Driver):
    """Ask a turn model for one answer at a time."""

    def __init__(self, stream: DuplexStream, post: Post) -> None:
        super().__init__(stream, post)
        self._answer: asyncio.Task[Any] | None = None

    def respond(self, event: ev.Respond) -> None:
        """Answer, when the answer before has let go of the model."""
        self._answer = self._start(self._respond(event, self._answer))

    async def _respond(self, event: ev.Respond, before: asyncio.Task[Any] | None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        if not await self._forward(self._stream.respond(event.history, event.options, event.fence), event.fence):
            # Without an end the session would answer nothing more, and never be idle.
            error = DuplexError("internal_error", "the model ended its answer without saying so", kind=SERVER)
            await self._post(ev.Failed(event.fence, error))

    def interrupt(self, fence: Fence) -> None:
        """Stop the answer."""
        answer, self._answer = self._answer, None
        self._answer = self._start(self._interrupt(answer, fence))

    async def _interrupt(self, answer: asyncio.Task[Any] | None, fence: Fence) -> None:
        if answer is not None:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
        await cancel_stream(self._stream, fence)


class UnitDriver(Driver):
    """Let a unit model hear one unit after the other, and silence where the client sends none.

    Args:
        stream: The stream.
        post: Where events go.
        capabilities: Of the model.
        clock: The session's clock.
        fence: Returns the fence in force.
        batcher: Where units of several sessions are heard together; None where the model takes one at a time.
        max_lead_s: How far a client may be ahead of real time before its audio waits; None for as far as it likes.
        on_late: Told for each unit how much later than in real time it had been heard.
    """

    def __init__(
        self,
        stream: DuplexStream,
        post: Post,
        capabilities: Capabilities,
        clock: Clock,
        fence: Callable[[], Fence],
        batcher: Batcher | None = None,
        max_lead_s: float | None = 1.0,
        on_late: Callable[[float], None] = lambda _: None,
    ) -> None:
        super().__init__(stream, post)
        self._capabilities = capabilities
        self._clock = clock
        self._fence = fence
        self._batcher = batcher
        self._max_lead_s = max_lead_s
        self._on_late = on_late
        self._unit_s = capabilities.unit_ms / 1000
        self._framer = Framer(capabilities.input_rate * capabilities.unit_ms // 1000)
        self._units: asyncio.Queue[tuple[Samples, int]] = asyncio.Queue()
        self._begun: float | None = None
        self._count = 0
        """Units given to the queue."""
        self._alarm: Handle | None = None
        self._start(self._hear())

    def feed(self, pcm: Samples) -> None:
        """Cut audio into units for the model."""
        if self._begun is None:
            self._begun = self._clock.now()
        for unit in self._framer.push(pcm):
            self._queue(unit, unit.nbytes)
        self._await_silence()

    def _queue(self, unit: Samples, nbytes: int) -> None:
        self._units.put_nowait((unit, nbytes))
        self._count += 1

    def _await_silence(self) -> None:
        """Give the model a unit of silence when the client is more than a unit late."""
        if not self._capabilities.silence_fills or self._begun is None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._clock.call_at(self._begun + (self._count + 2) * self._unit_s, self._fill)

    def _fill(self) -> None:
        pending = self._framer.pending * np.dtype(np.float32).itemsize
        self._queue(self._framer.fill(), pending)
        self._await_silence()

    async def _hear(self) -> None:
        number = 0
        while True:
            unit, nbytes = await self._units.get()
            await self._in_time(number)
            number += 1
            fence = self._fence()
            heard = AudioIn(unit, self._capabilities.input_rate, fence)
            outputs = self._stream.step(heard) if self._batcher is None else self._batched(heard)
            try:
                async with asyncio.timeout(UNIT_TIMEOUT_S):
                    await self._forward(outputs, fence)
            except TimeoutError:
                message = f"the model did not finish a unit of {self._capabilities.unit_ms} ms in {UNIT_TIMEOUT_S:g} s"
                await self._post(ev.Failed(fence, DuplexError("timeout", message, kind=SERVER, retryable=True)))
            if self._begun is not None:
                self._on_late(self._clock.now() - self._begun - number * self._unit_s)
            if nbytes:
                await self._post(ev.Consumed(nbytes))

    async def _batched(self, heard: AudioIn) -> AsyncIterator[Output]:
        assert self._batcher is not None, "_hear looked"
        for output in await self._batcher.step(self._stream, heard):
            yield output

    async def _in_time(self, number: int) -> None:
        """Wait until a unit is no further ahead of real time than it may be."""
        if self._max_lead_s is None or self._begun is None:
            return
        due = self._begun + number * self._unit_s - self._max_lead_s
        if due <= self._clock.now():
            return
        there = asyncio.Event()
        handle = self._clock.call_at(due, there.set)
        try:
            await there.wait()
        finally:
            handle.cancel()

    def interrupt(self, fence: Fence) -> None:
        """Tell the model that its answer is cancelled; it goes on hearing."""
        self._start(cancel_stream(self._stream, fence))

    async def stop(self) -> None:
        """End everything under way."""
        if self._alarm is not None:
            self._alarm.cancel()
        await super().stop()


async def cancel_stream(stream: DuplexStream, fence: Fence) -> None:
    """Let a stream drop its answer, for so long as that may take."""
    try:
        await asyncio.wait_for(stream.cancel(fence), CANCEL_TIMEOUT_S)
    except TimeoutError:
        logger.warning("session %s: the model took more than %s s to cancel", fence.session_id, CANCEL_TIMEOUT_S)
    except Exception:  # a plugin's code may raise anything; its old output is dropped by the fence anyway
        logger.exception("session %s: the model failed to cancel", fence.session_id)
