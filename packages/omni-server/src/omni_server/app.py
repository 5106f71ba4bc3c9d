"""Build the ASGI application: the routes of every plugin behind the middleware, with one form of error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from omni_core.plugins import PluginManager, clash, plugin_manager
from omni_server.context import ServerContext, ServerSettings, ServerState
from omni_server.engine import Engine
from omni_server.errors import HANDLERS
from omni_server.middleware import ApiKeyMiddleware, BodyLimitMiddleware, RequestIdMiddleware
from omni_server.observing import HttpMetricsMiddleware, TraceMiddleware


def build_app(
    engine: Engine,
    settings: ServerSettings,
    *,
    state: ServerState | None = None,
    plugins: PluginManager | None = None,
) -> Starlette:
    """Return the application that serves `engine`.

    Args:
        engine: The engine; it may still be starting.
        settings: How to answer.
        state: What changes while the server runs; the caller sets it.
        plugins: Where routes come from; this process's plugins if not given.

    Raises:
        ConfigError: Two distributions offer one method of one path.
    """
    plugins = plugins or plugin_manager()
    context = ServerContext(engine, settings, state or ServerState())
    offers = plugins.collect("omni_routes", context=context)
    found = collect_routes(offers)
    watching = [Middleware(HttpMetricsMiddleware, registry=engine.telemetry.registry, routes=found)]
    if engine.telemetry.is_traced:
        watching.append(Middleware(TraceMiddleware))
    app = Starlette(routes=found, middleware=[*watching, *_middleware(settings)], exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.context = context
    return app


def collect_routes(offers: Iterable[tuple[str, Iterable[BaseRoute]]]) -> list[BaseRoute]:
    """Return the routes of (distribution, routes) pairs as one list.

    Raises:
        ConfigError: Two routes have a path and a method in common; the message names both distributions.
    """
    owners: dict[tuple[str, str], str] = {}
    found: list[BaseRoute] = []
    for distribution, routes in offers:
        for route in routes:
            path = str(getattr(route, "path", None) or repr(route))
            for method in _methods(route):
                if (method, path) in owners:
                    raise clash("route", f"{method} {path}", owners[method, path], distribution)
                owners[method, path] = distribution
            found.append(route)
    return found


def _methods(route: Any) -> Iterable[str]:
    return sorted(getattr(route, "methods", None) or {"ANY"})


def _middleware(settings: ServerSettings) -> list[Middleware]:
    chain = [Middleware(RequestIdMiddleware)]
    if settings.allowed_origins:
        chain.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allowed_origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id"],
            )
        )
    if settings.api_key:
        chain.append(Middleware(ApiKeyMiddleware, keys=settings.api_key))
    chain.append(Middleware(BodyLimitMiddleware, limit=settings.max_body_bytes))
    return chain
