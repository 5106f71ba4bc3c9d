"""The speaking half of a WebSocket session: sentences wait in order, and one at a time is a request in the engine."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from omni_core.errors import OmniError
from omni_server.encoders import Samples
from omni_server.errors import log_service_error, request_id
from omni_server.speech import Synthesis
from omni_server.web_socket import EventSocket

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Sentence:
    utterance: int
    index: int
    text: str
    arrived: float

    def event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "utterance_index": self.utterance, "sentence_index": self.index, **more}


@dataclass(frozen=True)
class _End:
    utterance: int
    sentences: int
    fault: OmniError | None = None
    is_cancelled: bool = False


class Speaker:
    """Speak sentences and say when each utterance is done.

    The next sentence is given to the engine when the last is sent, so that a client which does not read holds the engine back.

    Args:
        socket: Where events and audio go.
        scope: The connection, for the log.
    """

    def __init__(self, socket: EventSocket, scope: Any) -> None:
        self._socket = socket
        self._scope = scope
        self._waiting: deque[_Sentence | _End] = deque()
        self._changed = asyncio.Event()
        self._synthesis: Synthesis | None = None
        self._streams = True
        self._running: asyncio.Task[None] | None = None
        self._current: _Sentence | _End | None = None
        self._is_stopping = False
        self.undone = 0
        """The first utterance without its `session.done`."""
        self._spoken = 0
        """Sentences of this utterance that have begun."""
        self._sent_bytes: int | None = None
        """Bytes of the sentence whose `audio.start` is out and whose `audio.done` is not."""
        self._is_sending = False
        self._is_aborted = False
        """Whether the sentence ends when what is being sent is sent."""
        self.pending_chars = 0
        """Characters of the sentences that wait."""
        self.idle_since = 0.0
        """When the last work ended, on the loop's clock."""

    @property
    def is_busy(self) -> bool:
        """Whether something is spoken or waits for it."""
        return self._current is not None or bool(self._waiting)

    def configure(self, synthesis: Synthesis, *, streams: bool) -> None:
        """Take what every sentence has in common, and whether its audio leaves as it is made."""
        self._synthesis = synthesis
        self._streams = streams

    def say(self, utterance: int, index: int, text: str) -> None:
        """Let a sentence wait for its turn."""
        self.pending_chars += len(text)
        self._put(_Sentence(utterance, index, text, asyncio.get_running_loop().time()))

    def end(self, utterance: int, sentences: int, fault: OmniError | None = None) -> None:
        """Let an utterance end when its sentences are spoken, with an error event first if it has a fault."""
        self._put(_End(utterance, sentences, fault))

    def cancel(self, last: int) -> None:
        """Abort the sentence that is spoken, forget those that wait, and end every utterance up to number `last`."""
        self.pending_chars -= sum(len(item.text) for item in self._waiting if isinstance(item, _Sentence))
        self._waiting.clear()
        for utterance in range(self.undone, last + 1):
            self._put(_End(utterance, self._spoken if utterance == self.undone else 0, is_cancelled=True))
        if self._running is not None and isinstance(self._current, _Sentence):
            self._is_aborted = True
            if not self._is_sending:
                self._running.cancel()

    def stop(self) -> None:
        """Let `run` return when nothing waits any more."""
        self._is_stopping = True
        self._changed.set()

    def _put(self, item: _Sentence | _End) -> None:
        self._waiting.append(item)
        self._changed.set()

    async def run(self) -> None:
        """Speak what waits, in order.

        Raises:
            ClientGoneError: The client left.
        """
        while True:
            if self._waiting:
                item = self._waiting.popleft()
                self.pending_chars -= len(item.text) if isinstance(item, _Sentence) else 0
                await self._do(item)
            elif self._is_stopping:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _do(self, item: _Sentence | _End) -> None:
        self._current = item
        if isinstance(item, _End):  # now, before its task begins: `cancel` may come first
            self.undone, self._spoken = item.utterance + 1, 0
        self._running = task = asyncio.create_task(self._speak(item) if isinstance(item, _Sentence) else self._finish(item))
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
            elif isinstance(item, _Sentence) and self._sent_bytes is not None:
                total, self._sent_bytes = self._sent_bytes, None
                await self._socket.send(item.event("audio.done", total_bytes=total, error=True, cancelled=True))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._running = self._current = None
            self._is_sending = self._is_aborted = False
            self.idle_since = asyncio.get_running_loop().time()

    async def _finish(self, end: _End) -> None:
        if end.fault is not None:
            await self._socket.send_error(end.fault)
        event = {"type": "session.done", "utterance_index": end.utterance, "total_sentences": end.sentences}
        await self._socket.send(event | ({"cancelled": True} if end.is_cancelled else {}))

    async def _speak(self, sentence: _Sentence) -> None:
        """Speak one sentence; one that fails is an error event, and the next one follows."""
        assert self._synthesis is not None
        synthesis = self._synthesis.for_text(sentence.text.strip(), sentence.arrived)
        logger.debug("request %s: a sentence is %s in the engine", request_id(self._scope), synthesis.engine_id)
        self._spoken = sentence.index + 1
        form = {"format": synthesis.format, "sample_rate": synthesis.sample_rate, "channels": synthesis.traits.channels}
        has_failed = False
        with self._sending():
            await self._socket.send(sentence.event("audio.start", sentence_text=sentence.text, **form))
            self._sent_bytes = 0
        try:
            with synthesis.meter:
                async with aclosing(self._packets(synthesis)) as packets:
                    async for data, samples in packets:
                        with self._sending():
                            await self._socket.send_audio(data)
                            self._sent_bytes += len(data)
                        for piece in samples:
                            synthesis.meter.sent(piece)
        except OmniError as error:
            has_failed = True
            log_service_error(self._scope, error)
            await self._socket.send_error(error)
        with self._sending():
            await self._socket.send(sentence.event("audio.done", total_bytes=self._sent_bytes, error=has_failed))
            self._sent_bytes = None

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Let what is sent in here be sent and noted before the sentence is aborted: the client may have it already."""
        self._is_sending = True
        try:
            yield
        finally:
            self._is_sending = False
        if self._is_aborted:
            raise asyncio.CancelledError

    async def _packets(self, synthesis: Synthesis) -> AsyncGenerator[tuple[bytes, list[Samples]], None]:
        if not self._streams:
            yield await synthesis.whole()
            return
        async with aclosing(synthesis.packets()) as packets:
            async for data, samples in packets:
                yield data, [samples]
