"""POST /v1/realtime/client_secrets, and what OpenAI's clients ask for beside it that this server does not do."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omni_core.errors import RequestError, UnsupportedError
from omni_server.client_secrets import MAX_SESSION_BYTES, ClientSecrets
from omni_server.context import ServerContext
from omni_server.protocol import parse
from omni_server.realtime import sessions_of
from omni_server.speech import read_json_body
from omni_server.status import check_model

NOT_HERE = {
    "/v1/realtime/calls": ("WebRTC and SIP calls are not served", "open a WebSocket at /v1/realtime"),
    "/v1/live/sessions": ("WebRTC sessions are not served", "open a WebSocket at /v1/live/sessions"),
    "/v1/realtime/sessions": ("the beta's way to a client secret is not served", "use POST /v1/realtime/client_secrets"),
    "/v1/realtime/transcription_sessions": (
        "sessions that only transcribe are not served",
        "use POST /v1/audio/transcriptions",
    ),
}
"""Paths of OpenAI's API that answer 501: why, and the way out."""


class ExpiresAfter(BaseModel):
    """Until when a secret holds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(default=600, ge=10, le=7200)


class SecretRequest(BaseModel):
    """The body; it may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    expires_after: ExpiresAfter = Field(default_factory=ExpiresAfter)
    session: dict[str, Any] = Field(default_factory=dict)
    """What sessions begin with: the `session` of a `session.update`."""


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""

    async def make(request: Request) -> Response:
        body = await read_json_body(request)
        return _make(context, parse(SecretRequest, body) if body.strip() else SecretRequest())

    async def refuse(request: Request) -> Response:
        reason, hint = NOT_HERE[request.scope["route"].path]
        raise UnsupportedError(reason, hint=hint)

    absent = [Route(path, refuse, methods=["POST"]) for path in NOT_HERE]
    return [Route("/v1/realtime/client_secrets", make, methods=["POST"]), *absent]


def _make(context: ServerContext, asked: SecretRequest) -> Response:
    """Return a new secret, after checking what its sessions are to begin with.

    Raises:
        RequestError: A setting cannot be used, or there are too many.
    """
    from omni_duplex.protocol.ga import GaDialect
    from omni_duplex.protocol.settings import shown_session
    from omni_duplex.service import first_config

    manager = sessions_of(context)
    session = asked.session
    if session.get("type") == "transcription":
        reason, hint = NOT_HERE["/v1/realtime/transcription_sessions"]
        raise UnsupportedError(reason, hint=hint, param="session.type")
    model = session.get("model", context.model_names[0])
    check_model(context, model if isinstance(model, str) else str(model))
    if len(json.dumps(session, separators=(",", ":")).encode()) > MAX_SESSION_BYTES:
        raise RequestError(
            f"the settings have more than {MAX_SESSION_BYTES} bytes",
            param="session",
            hint="leave the long ones to the client's session.update",
        )
    dialect = GaDialect()
    config = dialect.begin_with(session, first_config(manager, model), manager.capabilities)
    manager.model.validate(config)
    expires_at = int(time.time()) + asked.expires_after.seconds
    value = ClientSecrets(context.settings.api_key).make(expires_at, session)
    shown = shown_session(f"sess_{uuid.uuid4().hex}", config, dialect.formats, None)
    return JSONResponse({"value": value, "expires_at": expires_at, "session": shown})
