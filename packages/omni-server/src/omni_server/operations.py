"""Routes for operators and trainers: pause, sleep, new weights. Off unless the server was started with --enable-control-routes.

Those under /v1/omni are ours. The others have the names and bodies of vLLM's, so that its trainer-side clients work here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omni_core.operations import CALL_TIMEOUT_S, WEIGHTS_TIMEOUT_S, Operations
from omni_server.context import ServerContext
from omni_server.engine import Engine
from omni_server.errors import ApiError
from omni_server.protocol import parse
from omni_server.speech import read_json_body

MAX_TIMEOUT_S = 3600.0

B = TypeVar("B", bound="StagesBody")
Handler = Callable[[Operations, Any], Awaitable[Mapping[str, Any]]]


class StagesBody(BaseModel):
    """Which stages are meant. The whole body may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stage_ids: list[int] | None = None
    """All stages for which it can be meant, if left out."""
    timeout_s: float | None = Field(None, gt=0, le=MAX_TIMEOUT_S)
    """Seconds that each stage may take."""


class PauseBody(StagesBody):
    """How to pause."""

    mode: str = "keep"
    """`keep`, `wait` or `abort`."""
    clear_cache: bool | None = None
    """Taken and not needed: caches are cleared when weights have changed."""


class SleepBody(StagesBody):
    """How deep to sleep."""

    level: int = 1


class InitBody(StagesBody):
    """How to reach the trainer."""

    init_info: dict[str, Any]


class UpdateBody(StagesBody):
    """One part of an update."""

    update_info: dict[str, Any] | list[dict[str, Any]]


class FinishBody(StagesBody):
    """The end of an update."""

    weight_version: str | None = None


class VersionBody(StagesBody):
    """A version without an update."""

    new_version: str


async def _pause(engine: Operations, body: PauseBody) -> Mapping[str, Any]:
    acks = await engine.pause(body.stage_ids, mode=body.mode, timeout_s=_limit(body))  # type: ignore[arg-type]
    return {"status": "paused", "acks": acks}


async def _resume(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    return {"status": "resumed", "acks": await engine.resume(body.stage_ids, timeout_s=_limit(body))}


async def _is_paused(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    return {"is_paused": await engine.is_paused(body.stage_ids)}


async def _sleep(engine: Operations, body: SleepBody) -> Mapping[str, Any]:
    return {"acks": await engine.sleep(body.stage_ids, level=body.level, timeout_s=_limit(body))}


async def _wake_up(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    return {"acks": await engine.wake_up(body.stage_ids, timeout_s=_limit(body, WEIGHTS_TIMEOUT_S))}


async def _reload(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    return {"acks": await engine.reload_weights(body.stage_ids, timeout_s=_limit(body, WEIGHTS_TIMEOUT_S))}


async def _init(engine: Operations, body: InitBody) -> Mapping[str, Any]:
    limit = _limit(body, WEIGHTS_TIMEOUT_S)
    await engine.init_weight_transfer_engine(body.init_info, body.stage_ids, timeout_s=limit)
    return {"message": "Weight transfer initialized"}


async def _shutdown(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    await engine.shutdown_weight_transfer_engine(body.stage_ids, timeout_s=_limit(body))
    return {"message": "Weight transfer shut down"}


async def _start(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    await engine.start_weight_update(body.stage_ids, timeout_s=_limit(body, WEIGHTS_TIMEOUT_S))
    return {"message": "Weight update started"}


async def _update(engine: Operations, body: UpdateBody) -> Mapping[str, Any]:
    await engine.update_weights(body.update_info, body.stage_ids, timeout_s=_limit(body, WEIGHTS_TIMEOUT_S))
    return {"message": "Weights updated"}


async def _finish(engine: Operations, body: FinishBody) -> Mapping[str, Any]:
    limit = _limit(body, WEIGHTS_TIMEOUT_S)
    await engine.finish_weight_update(body.weight_version, body.stage_ids, timeout_s=limit)
    return {"message": "Weight update finished"}


async def _set_version(engine: Operations, body: VersionBody) -> Mapping[str, Any]:
    await engine.update_weight_version(body.new_version, body.stage_ids)
    return {"success": True, "new_version": body.new_version}


async def _weight_info(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    """Return the versions of all stages, and as vLLM does the one version where they agree, otherwise None."""
    versions = await engine.weight_versions(body.stage_ids)
    different = {version for found in versions.values() for version in found}
    return {"weight_version": different.pop() if len(different) == 1 else None, "stages": versions}


async def _world_size(engine: Operations, body: StagesBody) -> Mapping[str, Any]:
    return {"world_size": await engine.world_size(body.stage_ids)}


_ROUTES: Sequence[tuple[str, str, type[StagesBody], Handler]] = (
    ("POST", "/v1/omni/pause", PauseBody, _pause),
    ("POST", "/v1/omni/resume", StagesBody, _resume),
    ("POST", "/v1/omni/sleep", SleepBody, _sleep),
    ("POST", "/v1/omni/wakeup", StagesBody, _wake_up),
    ("POST", "/v1/omni/reload_weights", StagesBody, _reload),
    ("POST", "/pause", PauseBody, _pause),
    ("POST", "/resume", StagesBody, _resume),
    ("GET", "/is_paused", StagesBody, _is_paused),
    ("POST", "/init_weight_transfer_engine", InitBody, _init),
    ("POST", "/shutdown_weight_transfer_engine", StagesBody, _shutdown),
    ("POST", "/start_weight_update", StagesBody, _start),
    ("POST", "/update_weights", UpdateBody, _update),
    ("POST", "/finish_weight_update", FinishBody, _finish),
    ("POST", "/update_weight_version", VersionBody, _set_version),
    ("GET", "/weight_info", StagesBody, _weight_info),
    ("GET", "/get_world_size", StagesBody, _world_size),
)


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""
    engine = _Operated(context.engine)
    return [Route(path, _endpoint(context, engine, body, handle), methods=[method]) for method, path, body, handle in _ROUTES]


class _Operated(Operations):
    """The operations of an engine that has `call_stage`."""

    def __init__(self, engine: Engine) -> None:
        self.pipeline = engine.pipeline
        self._engine = engine

    async def call_stage(
        self, stage_id: int, method: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[Any]:
        return await self._engine.call_stage(stage_id, method, arguments, timeout_s=timeout_s)


def _endpoint(
    context: ServerContext, engine: Operations, body_class: type[B], handle: Handler
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if not context.settings.enable_control_routes:
            raise ApiError(403, f"{request.url.path} is off: start the server with --enable-control-routes")
        raw = await read_json_body(request)
        body = parse(body_class, raw if raw.strip() else b"{}")
        if isinstance(body, PauseBody) and "mode" in request.query_params:  # where vLLM's clients put it
            body.mode = request.query_params["mode"]
        return JSONResponse(await handle(engine, body))

    return endpoint


def _limit(body: StagesBody, default: float = CALL_TIMEOUT_S) -> float:
    return default if body.timeout_s is None else body.timeout_s
