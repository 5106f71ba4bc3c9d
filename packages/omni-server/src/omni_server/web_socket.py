"""A WebSocket for JSON events and binary audio, with limits on what comes in and deadlines on what goes out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from enum import IntEnum
from typing import Any
from urllib.parse import urlsplit

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from omni_core.errors import OmniError, RequestError
from omni_server import streaming
from omni_server.errors import error_object
from omni_server.middleware import KEY_PROTOCOL
from omni_server.streaming import ClientGoneError

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 1 << 20
"""Bytes of one binary frame: the most that common clients accept unless they are told otherwise."""
MAX_REASON_BYTES = 123
"""Bytes of a close frame's reason."""
_CLOSE_TIMEOUT_S = 5.0
_HALF = re.compile("[\ud800-\udfff]")


class CloseCode(IntEnum):
    """Why the server closes."""

    NORMAL = 1000
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    AGAIN = 1013
    EXPIRED = 4002
    SLOW = 4003


class SlowClientError(ClientGoneError):
    """Tell that the client stopped reading."""


class SocketEndError(Exception):
    """Ask for the end of a connection, after an error event if there is an error.

    Args:
        code: The close code.
        reason: What the close frame says.
        error: What the client is told before.
    """

    def __init__(self, code: CloseCode, reason: str, error: OmniError | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.error = error


class EventSocket:
    """Exchange events with one client. `send` may be called by several tasks."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._sending = asyncio.Lock()

    async def accept(self) -> None:
        """Open the connection, with the first subprotocol that is not a key: browsers insist on one if they offered some."""
        offered = [name for name in self._socket.scope.get("subprotocols", []) if not name.startswith(KEY_PROTOCOL)]
        await self._socket.accept(subprotocol=offered[0] if offered else None)

    async def receive(self, limit: int) -> str:
        """Return the text of the next message.

        Raises:
            ClientGoneError: The client left.
            RequestError: The message is binary.
            SocketEndError: It has more than `limit` bytes.
        """
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise ClientGoneError(f"code {message.get('code')}")
        text: str | None = message.get("text")
        if text is None:
            raise RequestError("a message is binary", hint="send JSON as text")
        if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
            what = f"a message has more than {limit} bytes"
            raise SocketEndError(CloseCode.TOO_BIG, what, RequestError(what, hint="send it in smaller ones"))
        return text

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event.

        Raises:
            ClientGoneError: The client left, or takes nothing any more.
        """
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        if not text.isascii() and _HALF.search(text):  # what a client said in halves of pairs goes back as it came, escaped
            text = json.dumps(event, separators=(",", ":"))
        await self._put({"type": "websocket.send", "text": text})

    async def send_audio(self, data: bytes) -> None:
        """Send bytes, in several frames where they are many.

        Raises:
            ClientGoneError: The client left, or takes nothing any more.
        """
        for begin in range(0, len(data), MAX_FRAME_BYTES):
            await self._put({"type": "websocket.send", "bytes": data[begin : begin + MAX_FRAME_BYTES]})

    async def send_error(self, error: OmniError) -> None:
        """Send an error event: the OpenAI error object, and its message once more where older clients look for it."""
        await self.send({"type": "error", "message": str(error), "error": error_object(error)})

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """Close the connection if it is open; a client that takes no close frame is left to uvicorn's limits."""
        if self._socket.application_state is WebSocketState.DISCONNECTED:
            return
        with contextlib.suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._socket.close(code, reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore"))

    async def _put(self, message: dict[str, Any]) -> None:
        stall_s = streaming.SEND_STALL_S
        try:
            async with asyncio.timeout(stall_s), self._sending:
                await self._socket.send(message)
        except TimeoutError as error:
            raise SlowClientError(f"it took no byte for {stall_s:g} s") from error
        except WebSocketDisconnect as error:
            raise ClientGoneError(f"code {error.code}") from error
        except RuntimeError as error:  # how Starlette and uvicorn say that the connection was closed meanwhile
            raise ClientGoneError(str(error)) from error


def is_origin_allowed(socket: WebSocket, allowed: tuple[str, ...]) -> bool:
    """Whether the page that opens a socket may: no page at all, one of this host, or one of the allowed origins.

    Browsers ask nobody before they open a socket to another site, so that the server has to look.
    """
    origin = socket.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    try:
        return urlsplit(origin).netloc.lower() == socket.headers.get("host", "").lower()
    except ValueError:  # no browser writes such an origin
        return False
