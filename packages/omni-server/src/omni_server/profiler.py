"""POST /start_profile and /stop_profile: PyTorch's profiler in every stage, for operators who gave a folder for the traces."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omni_core.errors import UnsupportedError
from omni_server.context import ServerContext
from omni_server.protocol import parse
from omni_server.speech import read_json_body

TIMEOUT_S = 120.0
"""Seconds that a stage may take: writing a trace is slow."""


class ProfileRequest(BaseModel):
    """The body; it may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stages: list[int] | None = None
    """The stages to profile; all if left out."""


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""

    async def start(request: Request) -> Response:
        return await _answer(context, request, "start_profile")

    async def stop(request: Request) -> Response:
        return await _answer(context, request, "stop_profile")

    return [Route("/start_profile", start, methods=["POST"]), Route("/stop_profile", stop, methods=["POST"])]


async def _answer(context: ServerContext, request: Request, method: Literal["start_profile", "stop_profile"]) -> Response:
    if context.settings.profile_dir is None:
        raise UnsupportedError("profiling is off", hint="start the server with --profile-dir")
    body = await read_json_body(request)
    asked = parse(ProfileRequest, body) if body.strip() else ProfileRequest()
    known = sorted({stage["stage_id"] for stage in context.engine.health()["stages"]})
    answers: list[dict[str, Any]] = []
    for stage_id in known if asked.stages is None else asked.stages:
        answers += await _call(context, stage_id, method)
    return JSONResponse({"stages": answers})


async def _call(context: ServerContext, stage_id: int, method: str) -> list[dict[str, Any]]:
    """Return what a stage's replicas answered; one that cannot be profiled says why and does not stop the others."""
    try:
        found = await context.engine.call_stage(stage_id, method, timeout_s=TIMEOUT_S)
    except UnsupportedError as error:
        return [{"stage_id": stage_id, "status": "SKIPPED", "reason": str(error), "files": []}]
    return [{"stage_id": stage_id, "replica": replica, "status": "OK", "files": files} for replica, files in enumerate(found)]
