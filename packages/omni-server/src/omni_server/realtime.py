"""WS /v1/realtime, /v1/duplex and /v1/live/sessions: a conversation in both directions, in the dialect that the client speaks.

The session itself is omni_duplex's: this module accepts sockets, chooses the dialect and moves messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from omni_core.errors import OmniError, RequestError
from omni_server.client_secrets import SETTINGS_KEY, ClientSecrets
from omni_server.context import ServerContext
from omni_server.errors import request_id, unexpected_message
from omni_server.middleware import given_key
from omni_server.protocol import refuse_constant
from omni_server.status import check_model
from omni_server.streaming import ClientGoneError
from omni_server.web_socket import CloseCode, EventSocket, SlowClientError, SocketEndError, is_origin_allowed

if TYPE_CHECKING:
    from omni_duplex.manager import Attachment, SessionManager
    from omni_duplex.model import SessionConfig
    from omni_duplex.protocol.ga import GaDialect
    from omni_duplex.protocol.live import LiveDialect

logger = logging.getLogger(__name__)

MAX_EVENT_BYTES = 15 * 1024**2 + 64 * 1024
"""Bytes of one event of a client: the audio that one may bring, and what is around it."""
FIRST_TIMEOUT_S = 10.0
"""Seconds in which a client must have said what it comes back to, or how a session of the Live API is to begin."""
IN_THREAD_BYTES = 256 * 1024
"""From here on an event is parsed in a thread, so that other sessions' audio does not wait for it."""
BETA_HEADER = "realtime=v1"
BETA_PROTOCOL = "openai-beta.realtime-v1"
OMNI_PROTOCOL = "omni.duplex.v1"
LIVE_PATH = "/v1/live/sessions"
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def routes(context: ServerContext) -> list[BaseRoute]:
    """Return the routes of this module; each connection is a session of its own."""

    async def talk(socket: WebSocket) -> None:
        if is_origin_allowed(socket, context.settings.allowed_origins):
            await RealtimeConnection(context, socket).run()
        else:
            logger.warning("a page of %s may not open a socket; see --allowed-origins", socket.headers["origin"][:200])
            await socket.close(CloseCode.POLICY, "this origin may not connect")

    return [WebSocketRoute(path, talk) for path in ("/v1/realtime", "/v1/duplex", LIVE_PATH)]


def sessions_of(context: ServerContext) -> SessionManager:
    """Return the sessions of this process.

    Raises:
        RequestError: The served model has none.
    """
    if context.state.sessions is None:
        raise RequestError(
            "the served model has no realtime sessions",
            param="model",
            hint="serve a pipeline with a duplex plugin and session_mode: duplex",
        )
    return context.state.sessions


def choose_dialect(socket: WebSocket) -> Callable[[], GaDialect]:
    """Return the dialect that a client asks for, by path, query, subprotocol or header; by default the realtime API."""
    from omni_duplex.protocol.beta import BetaDialect
    from omni_duplex.protocol.ga import GaDialect
    from omni_duplex.protocol.live import LiveDialect
    from omni_duplex.protocol.omni import OmniDialect

    if socket.url.path.endswith(LIVE_PATH):
        return LiveDialect
    protocols = socket.scope.get("subprotocols", [])
    wants_ours = socket.query_params.get("duplex", "").lower() in ("1", "true", "on")
    if socket.url.path.endswith("/v1/duplex") or wants_ours or OMNI_PROTOCOL in protocols:
        return OmniDialect
    if BETA_PROTOCOL in protocols or socket.headers.get("openai-beta") == BETA_HEADER:
        return BetaDialect
    return GaDialect


class RealtimeConnection:
    """One connection.

    Args:
        context: The server.
        socket: The connection, not accepted yet.
    """

    def __init__(self, context: ServerContext, socket: WebSocket) -> None:
        self._context = context
        self._query: Mapping[str, str] = socket.query_params
        self._raw = socket
        self._socket = EventSocket(socket)
        self._cause: object = None
        """Id of the client's event that a refusal answers."""

    async def run(self) -> None:
        """Serve the connection until one of the two sides ends it."""
        await self._socket.accept()
        code, reason = (
            int(CloseCode.INTERNAL),
            unexpected_message(request_id(self._raw.scope)),
        )  # unless something better is known
        try:
            code, reason = await self._serve()
        except SocketEndError as end:
            code, reason = end.code, end.reason
            if end.error is not None:
                await self._tell(end.error)
        except SlowClientError as error:
            code, reason = CloseCode.SLOW, str(error)
        except ClientGoneError as error:
            logger.debug("a realtime client left (%s)", error)
            return
        except OmniError as error:
            code, reason = _refusal(error), error.message
            await self._tell(error)
        finally:
            with suppress(ClientGoneError):
                await self._socket.close(code, reason)  # type: ignore[arg-type]

    async def _serve(self) -> tuple[int, str]:
        manager = sessions_of(self._context)
        if self._context.state.draining:
            raise SocketEndError(CloseCode.RESTART, "this server is shutting down")
        check_model(self._context, self._query.get("model"))
        attachment = await self._attach(manager)
        try:
            return await self._exchange(attachment)
        finally:
            manager.detach(attachment)

    async def _attach(self, manager: SessionManager) -> Attachment:
        from omni_duplex.protocol.live import LiveDialect
        from omni_duplex.service import first_config

        dialect = choose_dialect(self._raw)()
        if isinstance(dialect, LiveDialect):
            return await self._start(manager, dialect)
        if dialect.resumable and self._query.get("resume", "").lower() in ("1", "true"):
            return await self._resume(manager)
        given = self._given_settings()
        named = given.pop("model", None)
        config = first_config(manager, self._query.get("model") or named or self._context.model_names[0])
        if given:
            config = dialect.begin_with(given, config, manager.capabilities)
        return await self._open(manager, dialect, config)

    def _given_settings(self) -> dict[str, Any]:
        """Return what the client's secret, if it came with one, says of its sessions."""
        scope = self._raw.scope
        found = scope.get("state", {}).get(SETTINGS_KEY)
        if found is None and not self._context.settings.api_key:  # nobody has read it: this server asks for no key
            found = ClientSecrets(()).read(given_key(scope), time.time())
        return dict(found or {})

    async def _open(self, manager: SessionManager, dialect: GaDialect, config: SessionConfig) -> Attachment:
        actor = await manager.open(dialect, config)

        def check(old: SessionConfig, new: SessionConfig) -> None:
            manager.model.validate_update(old, new)
            actor.check_update(old, new)

        dialect.check_updates(check)
        return manager.attach(actor)

    async def _start(self, manager: SessionManager, dialect: LiveDialect) -> Attachment:
        """Open the session that the client's first message describes."""
        from omni_duplex.service import first_config

        message = await self._first("session.start")
        self._cause = message.get("event_id")
        config = first_config(manager, "")
        if manager.has_transcriber:
            config = replace(config, transcription={})
        config = dialect.start(message, config, manager.capabilities)
        check_model(self._context, config.model)
        attachment = await self._open(manager, dialect, config)
        await attachment.actor.receive(message)
        return attachment

    async def _first(self, kind: str) -> Mapping[str, Any]:
        """Return the client's first message, which should be a `kind`.

        Raises:
            DuplexError: None comes in time.
        """
        from omni_duplex.errors import DuplexError

        try:
            async with asyncio.timeout(FIRST_TIMEOUT_S):
                return await self._read()
        except TimeoutError as error:
            raise DuplexError("config_timeout", f"no {kind} came in {FIRST_TIMEOUT_S:g} s") from error

    async def _resume(self, manager: SessionManager) -> Attachment:
        """Return the session that the client's first message names."""
        from omni_duplex.errors import DuplexError
        from omni_duplex.protocol.checks import Fields

        message = await self._first("session.resume")
        fields = Fields(message)
        if fields.take("type") != "session.resume":
            raise DuplexError("invalid_session_resume", "the first event must be session.resume", "type")
        fields.text("event_id")
        session_id = fields.text("session_id", required=True)
        token = fields.text("resume_token", required=True)
        last = fields.number("last_received_server_event_seq", 0, 0, 1 << 53, whole=True)
        fields.done()
        return manager.resume(session_id, token, last)

    async def _exchange(self, attachment: Attachment) -> tuple[int, str]:
        """Move messages both ways until the session hangs up or the client leaves."""
        reading = asyncio.create_task(self._read_all(attachment))
        writing = asyncio.create_task(self._write_all(attachment))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                return writing.result()
            reading.result()
            return 1000, ""
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _write_all(self, attachment: Attachment) -> tuple[int, str]:
        while True:
            event = await attachment.channel.get()
            if isinstance(event, tuple):
                return event
            await self._socket.send(event)

    async def _read_all(self, attachment: Attachment) -> None:
        from omni_duplex.errors import DuplexError

        while True:
            try:
                message = await self._read()
            except DuplexError as error:
                attachment.actor.complain(error)
                continue
            await attachment.actor.receive(message)

    async def _read(self) -> Mapping[str, Any]:
        """Return the next message.

        Raises:
            DuplexError: It is binary, or no JSON object.
            SocketEndError: It is too long.
        """
        from omni_duplex.errors import DuplexError

        try:
            text = await self._socket.receive(MAX_EVENT_BYTES)
        except RequestError as error:
            raise DuplexError("invalid_json", "a message is binary", hint="send JSON as text") from error
        try:
            found = await anyio.to_thread.run_sync(_load, text) if len(text) > IN_THREAD_BYTES else _load(text)
        except (ValueError, RecursionError) as error:
            raise DuplexError("invalid_json", f"a message is no JSON: {str(error)[:200]}") from error
        if not isinstance(found, dict):
            raise DuplexError("invalid_json", f"a message must be a JSON object, not {type(found).__name__}")
        return found

    async def _tell(self, error: OmniError) -> None:
        from omni_duplex.errors import DuplexError

        body = error.body() if isinstance(error, DuplexError) else _body(error)
        if isinstance(error, DuplexError) and error.retryable:
            body["retryable"] = True
        if isinstance(self._cause, str):
            body["client_event_id"] = self._cause
        with suppress(ClientGoneError):
            await self._socket.send({"type": "error", "event_id": "event_refused", "error": body})


def _load(text: str) -> object:
    """Return the JSON that a text is, without what others would not take from us: NaN, and halves of surrogate pairs.

    Raises:
        ValueError: It is no such JSON.
    """
    found: object = json.loads(text, parse_constant=refuse_constant)
    if _ESCAPED_HALF.search(text):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _body(error: OmniError) -> dict[str, object]:
    kind = "server_error" if error.http_status >= 500 else "invalid_request_error"
    code = getattr(error, "code", None) or ("server_error" if kind == "server_error" else "invalid_value")
    return {"type": kind, "code": code, "message": str(error), "param": error.param}


def _refusal(error: OmniError) -> int:
    """Return the close code of a connection that was not served: try again later, or do not."""
    if error.http_status in (429, 503):
        return CloseCode.AGAIN
    return CloseCode.INTERNAL if error.http_status >= 500 else CloseCode.POLICY
