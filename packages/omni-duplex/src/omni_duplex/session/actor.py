"""The one task that owns a session: takes events from the mailbox, lets the reducer decide, and carries its effects out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from omni_duplex.errors import DuplexError
from omni_duplex.meter import SessionMeter
from omni_duplex.model import AudioOut, DuplexStream, Fence, Samples, SessionConfig
from omni_duplex.protocol.dialect import Dialect
from omni_duplex.session import events as ev
from omni_duplex.session.clock import Clock, Handle
from omni_duplex.session.drivers import Driver, as_duplex_error
from omni_duplex.session.outbox import Outbox, SlowConsumer
from omni_duplex.session.reducer import reduce
from omni_duplex.session.state import Life, Session

logger = logging.getLogger(__name__)

MAILBOX = 256
"""Events of the client and the model that may wait; whoever brings more waits too."""
CLEANUP_TIMEOUT_S = 10.0
"""Seconds that a stream may take to close before it is tried again."""

Transcriber = Callable[[Samples, int, SessionConfig], Awaitable[str]]
"""Find the words of audio: (pcm, Hz, settings) -> text."""


class Ear(Protocol):
    """Finds speech in a session's audio."""

    def push(self, pcm: Samples) -> Sequence[ev.SpeechStarted | ev.SpeechStopped]:
        """Hear more audio at the model's input rate and return where speech began and ended."""
        ...

    def configure(self, config: SessionConfig) -> None:
        """Take changed settings."""
        ...

    def reset(self) -> None:
        """Forget speech that is under way. The timeline goes on."""
        ...


class Mailbox:
    """Events in order, with room for a number of ordinary ones. What must not wait goes to the front and needs no room."""

    def __init__(self, size: int = MAILBOX) -> None:
        self._urgent: deque[ev.Event] = deque()
        self._ordinary: deque[ev.Event] = deque()
        self._room = asyncio.Semaphore(size)
        self._wake = asyncio.Event()

    async def put(self, event: ev.Event) -> None:
        """Add an event when there is room."""
        await self._room.acquire()
        self._ordinary.append(event)
        self._wake.set()

    def put_urgent(self, event: ev.Event) -> None:
        """Add an event that goes first: of the clock, of sockets, of a dead replica."""
        self._urgent.append(event)
        self._wake.set()

    async def get(self) -> ev.Event:
        """Return the next event."""
        while not self._urgent and not self._ordinary:
            self._wake.clear()
            await self._wake.wait()
        if self._urgent:
            return self._urgent.popleft()
        self._room.release()
        return self._ordinary.popleft()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._urgent and not self._ordinary


class SessionActor:
    """Run one session.

    Args:
        session: The state; nobody else changes it.
        stream: The model's stream.
        driver: Makes what drives the stream, given where its events go and what tells the fence in force.
        dialect: The client's language.
        outbox: What waits for the client.
        clock: The clock.
        ear: Finds speech; None where nothing looks for it.
        transcriber: Finds words; None where nothing does.
        meter: Follows what is sent; None where nobody counts.
        on_freed: Called once when the session is over and its slot is free.
    """

    def __init__(
        self,
        session: Session,
        stream: DuplexStream,
        driver: Callable[[Callable[[ev.Event], Awaitable[None]], Callable[[], Fence]], Driver],
        dialect: Dialect,
        outbox: Outbox,
        clock: Clock,
        *,
        ear: Ear | None = None,
        transcriber: Transcriber | None = None,
        meter: SessionMeter | None = None,
        on_freed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.session = session
        self.outbox = outbox
        self.dialect = dialect
        self.freed = asyncio.Event()
        """Set when the session is over and nothing of it is left."""
        self._stream = stream
        self._clock = clock
        self._ear = ear
        self._transcriber = transcriber
        self._meter = meter
        self._on_freed = on_freed
        self._mailbox = Mailbox()
        self._alarms: dict[str, Handle] = {}
        self._side: set[asyncio.Task[Any]] = set()
        self._driver = driver(self._mailbox.put, lambda: session.fence)
        self._task = asyncio.ensure_future(self._run())

    def check_update(self, old: SessionConfig, new: SessionConfig) -> None:
        """Check a change of settings as this session and the model's stream see it.

        Raises:
            DuplexError: The change cannot be made now, or the end of turns is to be found and nothing here finds it.
        """
        asks = new.turn_detection is not None and new.turn_detection != old.turn_detection
        if asks and self._ear is None and self.session.is_turn_model:
            raise DuplexError(
                "turn_detection_unavailable",
                "nothing on this server finds the end of turns",
                "session.audio.input.turn_detection",
                hint="run `omni vad` on the server, or set turn_detection to null and commit turns",
            )
        self._stream.validate_update(old, new)

    # -- for the socket --------------------------------------------------------------------------------------------

    async def receive(self, message: Mapping[str, Any]) -> None:
        """Take a client's message. What is wrong with it is answered by an error event, and the session goes on."""
        try:
            commands = self.dialect.decode(message)
        except DuplexError as error:
            self.complain(error, message.get("event_id"))
            return
        event_id = message.get("event_id")
        for command in commands:
            await self._mailbox.put(replace(command, event_id=event_id) if isinstance(event_id, str) else command)

    def complain(self, error: DuplexError, event_id: object = None) -> None:
        """Tell the client what is wrong with what it sent."""
        body = error.body(event_id if isinstance(event_id, str) else None)
        self._send(ev.Send({"type": "error", "error": body}))

    def post(self, event: ev.Event) -> None:
        """Add an event that does not come from the client: sockets, a dead replica, the server's end."""
        self._mailbox.put_urgent(event)

    async def idle(self) -> None:
        """Wait until everything that came was taken (tests)."""
        while not self._mailbox.is_empty:
            await asyncio.sleep(0)

    # -- the loop --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self.session.life is not Life.CLOSED:
            event = await self._mailbox.get()
            heard = self.session.heard
            try:
                self._take(event)
                if isinstance(event, ev.Append) and self.session.heard > heard:
                    await self._listen(event.pcm)
            except Exception:  # a fault of ours must end this session, not leave it standing, deaf, with its slot
                logger.exception("session %s: %s could not be handled", self.session.id, type(event).__name__)
                if self.session.life in (Life.CLOSING, Life.CLOSED):
                    continue
                self._mailbox.put_urgent(ev.Close("internal_error"))
        for handle in self._alarms.values():
            handle.cancel()
        for task in self._side:
            task.cancel()
        self.freed.set()
        self._on_freed(self.session.id)

    def _take(self, event: ev.Event) -> None:
        now = self._clock.now()
        for effect in reduce(self.session, event, now):
            self._do(effect)

    async def _listen(self, pcm: Samples) -> None:
        """Look for speech in audio that was taken, with room for others in between: a client may append minutes at once."""
        step = self.session.capabilities.input_rate
        for begin in range(0, len(pcm), step):
            if self._ear is None or self.session.is_over:
                return
            for found in self._ear.push(pcm[begin : begin + step]):
                self._take(found)
            if begin + step < len(pcm):
                await asyncio.sleep(0)

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Send():
                self._send(effect)
            case ev.Feed():
                self._driver.feed(effect.pcm)
            case ev.Respond():
                self._driver.respond(effect)
            case ev.Interrupt():
                self._driver.interrupt(effect.fence)
            case ev.Arm():
                self._arm(effect)
            case ev.Disarm():
                if (handle := self._alarms.pop(effect.name, None)) is not None:
                    handle.cancel()
            case ev.Configure():
                self._configure(effect.config)
            case ev.Transcribe():
                self._beside(self._transcribe(effect))
            case ev.ForgetInput():
                if self._ear is not None:
                    self._ear.reset()
            case ev.Trim():
                if self.outbox.journal is not None:
                    self.outbox.journal.acknowledge(effect.seq)
            case ev.Cleanup():
                self._beside(self._clean())
            case ev.Hangup():
                self.outbox.hang_up(effect.code, effect.reason)
            case ev.Free():
                pass  # the loop sees that the session is closed

    def _send(self, effect: ev.Send) -> None:
        event = effect.event
        if self._meter is not None:
            self._meter.sent(event, self._clock.now())
        delta = event.get("delta")
        seconds = len(delta.pcm) / delta.sample_rate if isinstance(delta, AudioOut) else 0.0
        try:
            for message in self.dialect.encode(event):
                self.outbox.put(message, self._clock.now(), audio_s=seconds)
        except SlowConsumer:
            self.outbox.detach()
            self._mailbox.put_urgent(ev.Overflowed())

    def _arm(self, effect: ev.Arm) -> None:
        if (handle := self._alarms.pop(effect.name, None)) is not None:
            handle.cancel()
        timer = ev.Timer(effect.name, effect.at)
        self._alarms[effect.name] = self._clock.call_at(effect.at, lambda: self._mailbox.put_urgent(timer))

    def _configure(self, config: SessionConfig) -> None:
        if self._ear is not None:
            self._ear.configure(config)
        self._beside(self._stream.configure(config))

    def _beside(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._side.add(task)
        task.add_done_callback(self._besides_done)

    def _besides_done(self, task: asyncio.Task[Any]) -> None:
        self._side.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("session %s: what ran beside it failed", self.session.id, exc_info=error)

    async def _transcribe(self, effect: ev.Transcribe) -> None:
        rate = self.session.capabilities.input_rate
        seconds = len(effect.pcm) / rate
        if self._transcriber is None:
            error = DuplexError("transcription_unsupported", "this server does not write down what users say")
            self._mailbox.put_urgent(ev.Transcribed(effect.item_id, error=error))
            return
        try:
            text = await self._transcriber(effect.pcm, rate, self.session.config)
        except Exception as error:  # whatever the transcriber raises; the conversation goes on without the words
            logger.exception("session %s: the transcriber failed", self.session.id)
            self._mailbox.put_urgent(ev.Transcribed(effect.item_id, error=as_duplex_error(error)))
            return
        self._mailbox.put_urgent(ev.Transcribed(effect.item_id, text, seconds))

    async def _clean(self) -> None:
        """Stop the model and close its stream."""
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                await self._driver.stop()
                await self._stream.close()
        except Exception:  # a plugin's code may raise anything; the slot stays held until closing succeeds
            logger.exception("session %s: its stream could not be closed; trying again", self.session.id)
            self._mailbox.put_urgent(ev.Cleaned(ok=False))
            return
        self._mailbox.put_urgent(ev.Cleaned(ok=True))
