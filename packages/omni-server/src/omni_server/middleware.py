"""What happens to every request before its route: an id, the key, and the limit of its body. All are plain ASGI."""

from __future__ import annotations

import hashlib
import hmac
import time
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_server.client_secrets import PATHS, PREFIX, SETTINGS_KEY, ClientSecrets
from omni_server.errors import ApiError, error_response

MAX_REQUEST_ID = 128
OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/version", "/metrics"})
"""What needs no key: load balancers and monitors read these. Everything else does, routes of plugins included."""
KEY_PROTOCOL = "openai-insecure-api-key."
"""Begins the subprotocol in which browsers send the key of a WebSocket."""


class RequestIdMiddleware:
    """Give each request an id and send it back as X-Request-Id.

    A client's own id is echoed, cut to 128 characters. It is a label only: the engine's ids are made by the server, so two
    requests with the same label do not meet.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Label the request and its answer."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        label = Headers(scope=scope).get("x-request-id", "").strip()[:MAX_REQUEST_ID] or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = label

        async def send_with_id(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                MutableHeaders(scope=message)["X-Request-Id"] = label
            await send(message)

        await self.app(scope, receive, send_with_id)


class ApiKeyMiddleware:
    """Refuse requests without one of the keys, on HTTP and WebSocket routes alike.

    A realtime socket may also be opened with a client secret, until that expires.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app = app
        keys = tuple(keys)
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._secrets = ClientSecrets(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through if it needs no key or brings one."""
        is_free = scope["type"] not in ("http", "websocket") or scope.get("method") == "OPTIONS" or self._is_open(scope)
        if is_free or self._opens(scope, given_key(scope)):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await receive()  # the connect message, which must be read before the answer
        if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": "invalid API key"})  # the server makes it a 403
        else:
            message = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`"
            headers = {"WWW-Authenticate": "Bearer"}
            await error_response(401, message, headers=headers)(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = _path(scope)
        # The page is the same for everybody; a browser could not send a key to get it.
        return path in OPEN_PATHS or path == "/ui" or path.startswith("/ui/")

    def _opens(self, scope: Scope, key: str) -> bool:
        if self._knows(key):
            return True
        if scope["type"] != "websocket" or not key.startswith(PREFIX) or _path(scope) not in PATHS:
            return False
        settings = self._secrets.read(key, time.time())
        if settings is None:
            return False
        scope.setdefault("state", {})[SETTINGS_KEY] = settings
        return True

    def _knows(self, key: str) -> bool:
        # A header's bytes come as Latin-1; whoever has a key beyond ASCII sends it in UTF-8, as the flag has it.
        digest = hashlib.sha256(key.encode("latin-1", "replace")).digest()
        # Every key is compared, so that the time tells neither whether nor which one fits.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


class BodyLimitMiddleware:
    """Refuse bodies of more than `limit` bytes, by their declared length or when they have grown past it."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body as it is read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.limit:
            await error_response(413, self._message())(scope, receive, send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise ApiError(413, self._message())
            return message

        await self.app(scope, receive_counted, send)

    def _message(self) -> str:
        return f"the body is larger than {self.limit} bytes; send less, or start the server with a larger --max-body-bytes"


def _path(scope: Scope) -> str:
    full: str = scope["path"]
    return full.removeprefix(scope.get("root_path", "").rstrip("/"))


def given_key(scope: Scope) -> str:
    """Return the key that a request brings, by header or, on a WebSocket, by subprotocol; empty where it brings none."""
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    if scope["type"] == "websocket":  # browsers cannot set headers there; OpenAI's clients use a subprotocol
        for name in scope.get("subprotocols", []):
            if name.startswith(KEY_PROTOCOL):
                return str(name.removeprefix(KEY_PROTOCOL))
    return ""
