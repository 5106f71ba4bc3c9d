"""WS /v1/audio/speech/stream (AP-06): text arrives in pieces, and each sentence is spoken while the next ones arrive.

| client | server |
|---|---|
| `session.config` | |
| `input.text`, ... | `audio.start`, binary frames, `audio.done` for each sentence |
| `input.done` | the rest, then `session.done` for the utterance; the next one may begin |
| `input.cancel` | `audio.done` and `session.done` with `cancelled` |
| `session.close` | what was sent is still spoken, then close code 1000 |

When the server stops, the utterances that have begun are spoken, no further one begins, and close code 1012 ends the session.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio.to_thread
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from omni_core.errors import DeadlineError, OmniError, RequestError, ServiceError
from omni_server.context import ServerContext
from omni_server.draining import end_by_itself
from omni_server.encoders import FORMATS
from omni_server.errors import log_service_error, request_id, unexpected_message
from omni_server.protocol import SessionConfig, load_object, validated
from omni_server.speaker import Speaker
from omni_server.speech import LARGE_BODY_BYTES, prepare_speech
from omni_server.streaming import ClientGoneError
from omni_server.text_pieces import MAX_PIECE_CHARS, PieceSplitter
from omni_server.web_socket import CloseCode, EventSocket, SlowClientError, SocketEndError, is_origin_allowed

logger = logging.getLogger(__name__)

CONFIG_TIMEOUT_S = 10.0
"""Seconds in which the first message must have come."""
IDLE_TIMEOUT_S = 30.0
"""Seconds that a client may send nothing while nothing is spoken."""
MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_MESSAGE_BYTES = 128 * 1024
MAX_PENDING_CHARS = 256 * 1024
"""Characters of a connection that are not spoken yet."""
LARGE_TEXT_CHARS = 4096
"""From here on text is cut into sentences in a thread: a text without an end to any takes a second for 128 KiB."""
MAX_PENDING_UTTERANCES = 1024
"""Utterances of a connection that have no `session.done` yet."""
_STOPPING = "this server is shutting down"
_BEGINNERS = frozenset({"session.config", "input.text", "input.done"})
"""Messages that begin an utterance, or prepare one, where none has begun."""
_PROBE = "Hello."
"""A text that stands for those to come when a configuration is checked."""


class ConflictingMessageError(RequestError):
    """Report a message that does not fit what the session is doing."""

    code = "message_out_of_order"


class BackpressureError(RequestError):
    """Report text that is refused because too much of it waits."""

    http_status = 429
    http_type = "rate_limit_error"
    code = "input_backpressure"


class SessionTimeoutError(DeadlineError):
    """Report a client that says nothing."""

    code = "session_timeout"


class StoppingError(ServiceError):
    """Report what does not begin, or is cut off, because the server stops."""

    http_status = 503
    http_type = "service_unavailable_error"
    code = "server_stopping"


def routes(context: ServerContext) -> list[WebSocketRoute]:
    """Return the route of this module."""

    async def talk(socket: WebSocket) -> None:
        if is_origin_allowed(socket, context.settings.allowed_origins):
            await SpeechSession(context, socket).run()
        else:
            logger.warning("a page of %s may not open a socket; see --allowed-origins", socket.headers["origin"][:200])
            await socket.close(CloseCode.POLICY, "this origin may not connect")

    return [WebSocketRoute("/v1/audio/speech/stream", talk)]


class SpeechSession:
    """One connection: its messages become sentences for the speaker.

    Args:
        context: The server.
        socket: The connection, not accepted yet.
    """

    def __init__(self, context: ServerContext, socket: WebSocket) -> None:
        self._context = context
        self._scope = socket.scope
        self._socket = EventSocket(socket)
        self._speaker = Speaker(self._socket, socket.scope)
        self._splitter = PieceSplitter()
        self._utterance = 0
        self._sentences = 0
        self._has_text = False
        self._is_closing = False
        self._is_stopping = False
        """Whether no further utterance begins, because the server stops."""

    async def run(self) -> None:
        """Serve the connection until one of the two sides ends it."""
        await self._socket.accept()
        label = request_id(self._scope)
        code, reason = CloseCode.NORMAL, ""
        try:
            if self._context.state.draining:
                raise SocketEndError(CloseCode.RESTART, _STOPPING)
            await self._first_config()
            await self._serve()
            if self._is_stopping and not self._is_closing:
                code, reason = CloseCode.RESTART, _STOPPING
        except SocketEndError as end:
            code, reason = end.code, end.reason
            await self._tell(end.error)
        except SlowClientError as error:
            code, reason = CloseCode.SLOW, str(error)
            logger.info("request %s: the client left (%s)", label, error)
        except ClientGoneError as error:
            logger.info("request %s: the client left (%s)", label, error)
            return
        except asyncio.CancelledError:  # the server's time to drain is over; what the client has must not look whole
            code, reason = CloseCode.RESTART, _STOPPING
            await self._tell(StoppingError("the server stops, and what was not spoken yet is cut off"))
            raise
        except Exception:  # a bug of ours: uvicorn logs it, and the client must not take what it has for the whole
            code, reason = CloseCode.INTERNAL, unexpected_message(label)
            await self._tell(ServiceError(reason))
            raise
        finally:
            await self._socket.close(code, reason)

    async def _tell(self, error: OmniError | None) -> None:
        if error is not None:
            try:
                await self._socket.send_error(error)
            except ClientGoneError:
                logger.info("request %s: the client left before it was told of an error", request_id(self._scope))

    async def _serve(self) -> None:
        """Read and speak at the same time; whoever ends first ends the session, and what is being spoken is aborted."""
        end_by_itself(self._scope)
        tasks = {asyncio.create_task(self._speaker.run()), asyncio.create_task(self._read())}
        stopping = asyncio.create_task(self._watch_stop())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)

    async def _watch_stop(self) -> None:
        """Let the session end when the server stops: at once, or when the utterances that have begun are spoken."""
        await self._context.state.stopping.wait()
        self._is_stopping = True
        if not self._has_text:
            self._speaker.stop()

    async def _first_config(self) -> None:
        try:
            async with asyncio.timeout(CONFIG_TIMEOUT_S):
                text = await self._socket.receive(MAX_CONFIG_BYTES)
        except TimeoutError as error:
            what = f"no session.config came within {CONFIG_TIMEOUT_S:g} s"
            raise SocketEndError(CloseCode.POLICY, what, SessionTimeoutError(what)) from error
        except RequestError as error:
            raise SocketEndError(CloseCode.POLICY, "the first message is not session.config", error) from error
        try:
            message = await _parsed(text)
            if message.get("type") != "session.config":
                raise ConflictingMessageError("the first message must be session.config", param="type")
            await self._configure(message)
        except OmniError as error:
            raise SocketEndError(CloseCode.POLICY, "the configuration cannot be used", error) from error

    async def _configure(self, message: dict[str, Any]) -> None:
        """Take a configuration: everything is checked and fetched now, so that every sentence has the same voice."""
        config = await anyio.to_thread.run_sync(validated, SessionConfig, message)
        name = config.response_format or "wav"
        streams = config.stream_audio
        if streams is None:
            streams = FORMATS[name].streams and config.speed in (None, 1.0)
        now = asyncio.get_running_loop().time()
        synthesis = await prepare_speech(self._context, config, _PROBE, "websocket", now, streaming=streams)
        assert self._context.engine.speech is not None
        self._context.engine.speech.prepare(synthesis.prompt)
        self._speaker.configure(synthesis, streams=streams)
        limit = min(MAX_PIECE_CHARS, synthesis.traits.max_text_chars)
        self._splitter = PieceSplitter(config.split_granularity, limit)

    async def _read(self) -> None:
        """Handle messages until the client leaves, says nothing for too long, or sends too much."""
        while True:
            try:
                await self._handle(await self._next_message())
            except StoppingError as error:
                await self._socket.send_error(error)
            except OmniError as error:
                log_service_error(self._scope, error)
                await self._socket.send_error(error)

    async def _next_message(self) -> str:
        """Return the next message; the time in which it must come does not run while something is spoken."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        while True:
            begin = loop.time() if self._speaker.is_busy else max(asked, self._speaker.idle_since)
            try:
                async with asyncio.timeout_at(begin + IDLE_TIMEOUT_S):
                    return await self._socket.receive(MAX_CONFIG_BYTES)
            except TimeoutError as error:
                if self._speaker.is_busy or self._speaker.idle_since > begin:
                    continue
                what = f"nothing came for {IDLE_TIMEOUT_S:g} s"
                raise SocketEndError(CloseCode.EXPIRED, what, SessionTimeoutError(what)) from error

    async def _handle(self, text: str) -> None:
        message = await _parsed(text)
        kind = message.get("type")
        if kind != "session.config" and len(text.encode("utf-8", "surrogatepass")) > MAX_MESSAGE_BYTES:
            what = f"a message has more than {MAX_MESSAGE_BYTES} bytes"
            raise SocketEndError(CloseCode.TOO_BIG, what, RequestError(what, hint="send the text in smaller messages"))
        if self._is_closing and kind != "input.cancel":
            raise ConflictingMessageError("the session is closing", param="type", hint="open another one")
        if self._is_stopping and not self._has_text and kind in _BEGINNERS:
            hint = "open another session; this one closes when what was sent is spoken"
            raise StoppingError("the server stops and begins no further utterance", param="type", hint=hint)
        match kind:
            case "session.config":
                await self._reconfigure(message)
            case "input.text":
                await self._input(message)
            case "input.done":
                self._check_backlog()
                self._done()
            case "input.cancel":
                self._cancel()
            case "session.close":
                self._close()
            case _:
                hint = "send session.config, input.text, input.done, input.cancel or session.close"
                raise RequestError(f"there is no message {str(kind)[:60]!r}", param="type", hint=hint)

    async def _reconfigure(self, message: dict[str, Any]) -> None:
        if self._has_text or self._speaker.undone < self._utterance:
            hint = "wait for session.done, or send input.cancel"
            raise ConflictingMessageError("the configuration cannot change within an utterance", param="type", hint=hint)
        await self._configure(message)

    async def _input(self, message: dict[str, Any]) -> None:
        text = message.get("text")
        if not isinstance(text, str):
            raise RequestError("`text` must be a string", param="text", hint='send {"type": "input.text", "text": "..."}')
        if "\0" in text:
            raise RequestError("`text` contains a NUL character", param="text", hint="leave it out")
        if self._speaker.pending_chars + len(self._splitter) + len(text) > MAX_PENDING_CHARS:
            what = f"more than {MAX_PENDING_CHARS} characters wait to be spoken, so that this text is not taken"
            raise BackpressureError(what, param="text", hint="send it again when some of them are spoken")
        self._has_text = self._has_text or bool(text)
        in_thread = len(text) > LARGE_TEXT_CHARS
        self._say(await anyio.to_thread.run_sync(self._splitter.push, text) if in_thread else self._splitter.push(text))

    def _check_backlog(self) -> None:
        if self._utterance - self._speaker.undone >= MAX_PENDING_UTTERANCES:
            what = f"{MAX_PENDING_UTTERANCES} utterances wait to be spoken, so that this one does not end yet"
            raise BackpressureError(what, param="type", hint="send input.done again when some of them are spoken")

    def _done(self) -> None:
        """End the utterance: what is left is a sentence too."""
        fault = None
        try:
            rest = self._splitter.flush()
        except RequestError as error:
            fault, rest = error, self._splitter.flush()
        self._say(rest)
        if not self._sentences and fault is None:
            fault = RequestError("there is no text to speak", param="text", hint="send input.text before input.done")
        self._speaker.end(self._utterance, self._sentences, fault)
        self._next_utterance()

    def _cancel(self) -> None:
        """Abort what is spoken and forget what waits."""
        self._splitter.clear()
        self._speaker.cancel(self._utterance if self._has_text else self._utterance - 1)
        if self._has_text:
            self._next_utterance()

    def _close(self) -> None:
        """Speak what was sent, then close."""
        self._is_closing = True
        if self._has_text:
            self._done()
        self._speaker.stop()

    def _say(self, pieces: list[str]) -> None:
        for piece in pieces:
            if not piece.isspace():
                self._speaker.say(self._utterance, self._sentences, piece)
                self._sentences += 1

    def _next_utterance(self) -> None:
        self._utterance += 1
        self._sentences = 0
        self._has_text = False
        if self._is_stopping:
            self._speaker.stop()


async def _parsed(text: str) -> dict[str, Any]:
    """Return the JSON object that a message is, read in a thread where it is long."""
    return await anyio.to_thread.run_sync(load_object, text) if len(text) > LARGE_BODY_BYTES else load_object(text)
