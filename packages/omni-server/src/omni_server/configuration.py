"""What a server runs with: /v1/omni/config, without secrets and with where each value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omni_core.deploy.explain import Setting, all_settings, find_source
from omni_core.deploy.redact import redact
from omni_core.errors import NotFoundError
from omni_core.stage import ResolvedPipeline
from omni_server.context import ServerContext


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""

    async def get_configuration(request: Request) -> Response:
        resolved = context.engine.pipeline
        if resolved is None:
            raise NotFoundError("this engine was not made from a deployment", hint="it has nothing to show")
        return JSONResponse(public_configuration(resolved))

    return [Route("/v1/omni/config", get_configuration, methods=["GET"])]


def public_configuration(resolved: ResolvedPipeline) -> dict[str, Any]:
    """Return a deployment as clients with a key may see it: environment variables by name only, and no secret at all."""
    settings = all_settings(resolved)
    return {
        "pipeline": resolved.config.model_type,
        "platform": resolved.platform,
        "config_hash": resolved.config_hash,
        "files": list(resolved.files),
        "warnings": [redact("warnings", text) for text in resolved.warnings],
        "fallbacks": [*_fallbacks(settings), *_mps_fallbacks(resolved)],
        "stages": [
            {
                "stage_id": stage.stage_id,
                "name": stage.topology.model_stage,
                "type": str(stage.topology.execution_type),
                "architecture": stage.architecture,
                "runner": stage.runner,
                "inputs": [edge.from_stage for edge in stage.inputs],
                "outputs": [edge.to_stage for edge in stage.outputs],
            }
            for stage in resolved.stages
        ],
        "settings": [_public(setting) for setting in settings],
    }


def _public(setting: Setting) -> dict[str, Any]:
    plain = setting.as_plain()
    plain["value"] = redact(setting.field, plain["value"])
    for loser in plain["losers"]:
        loser["value"] = redact(setting.field, loser["value"])
    return plain


def _fallbacks(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return what somebody asked for and the pipeline does not do."""
    found = []
    for setting in settings:
        asked = next((loser for loser in setting.losers if loser.layer != "default"), None)
        if setting.source.layer == "pipeline" and asked is not None and asked.value != setting.value:
            item = {"stage": setting.stage, "field": setting.field, "because": setting.source.place}
            item |= {"asked": redact(setting.field, asked.value), "place": asked.place}
            found.append({**item, "value": redact(setting.field, setting.value)})
    return found


def _mps_fallbacks(resolved: ResolvedPipeline) -> list[dict[str, Any]]:
    """Return why MPS is not used although a deploy file asks for it."""
    if not resolved.values.get("cuda_mps"):
        return []
    place = find_source("cuda_mps", resolved.sources).place
    reasons = (
        [f"the platform is {resolved.platform}"]
        if resolved.mps is None
        else [refusal.message for refusal in resolved.mps.refusals]
    )
    item = {"stage": None, "field": "cuda_mps", "asked": True, "place": place, "value": False}
    return [{**item, "because": reason} for reason in reasons]
