"""What is observed of every HTTP request: its count by route and status, and the trace that it belongs to. Plain ASGI."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_core.observe.tracing import remote_parent
from omni_server.errors import CLIENT_CLOSED_REQUEST

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
ELSEWHERE = "other"
"""Label of methods and paths that no route has, however many there are."""
_TRACE_HEADERS = ("traceparent", "tracestate")


class HttpMetricsMiddleware:
    """Count requests, and note when each arrived.

    Args:
        app: What comes behind it.
        registry: Where the numbers go.
        routes: The routes that there are.
    """

    def __init__(self, app: ASGIApp, registry: Registry, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self._registry = registry
        self._paths = {getattr(route, "endpoint", None): str(getattr(route, "path", ELSEWHERE)) for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the request by its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})["arrived"] = time.monotonic()
        status = CLIENT_CLOSED_REQUEST

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception:  # counted whatever it is; raised again
            # Without a head this becomes the answer 500, further out.
            status = 500 if status == CLIENT_CLOSED_REQUEST else status
            raise
        finally:
            method = scope["method"] if scope["method"] in METHODS else ELSEWHERE
            route = self._paths.get(scope.get("endpoint"), ELSEWHERE)
            self._registry.inc(series.HTTP_REQUESTS, method=method, route=route, status=str(status))


class TraceMiddleware:
    """Let a request's spans belong to the trace that its client names in `traceparent`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on within its trace."""
        headers = Headers(scope=scope) if scope["type"] in ("http", "websocket") else {}
        found = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
        if not found:
            await self.app(scope, receive, send)
            return
        with remote_parent(found):
            await self.app(scope, receive, send)


def arrival(scope: Any) -> float:
    """Return when a request arrived, on the clock of `time.monotonic`."""
    return float(scope.get("state", {}).get("arrived") or time.monotonic())
