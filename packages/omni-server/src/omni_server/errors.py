"""How errors leave the server: always as the OpenAI error object, whoever raised them.

    {"error": {"message": "...", "type": "invalid_request_error", "param": "voice", "code": null}}

Routes raise the classes of `omni_core.errors`; what Starlette finds by itself (no such path, wrong method) gets the same shape.
"""

from __future__ import annotations

import http
import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from omni_core.errors import OmniError

logger = logging.getLogger(__name__)

RETRY_AFTER_S = "1"
CLIENT_CLOSED_REQUEST = 499
"""The status, nginx's, in our log of a request whose client left. Nobody receives it."""

_HTTP_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_HTTP_CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "path_not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
}
_HTTP_HINTS = {
    404: "nothing is served at {method} {path}",
    405: "{method} cannot be used on {path}; see the Allow header",
}


class ApiError(HTTPException):
    """Report what is only an error over HTTP, such as a body that is too large."""


def error_object(error: OmniError) -> dict[str, Any]:
    """Return the inside of the OpenAI error object for `error`."""
    code = getattr(error, "code", None)
    return {"message": str(error), "type": error.http_type, "param": error.param, "code": code}


def error_response(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """Return an error that no exception class of ours stands for."""
    kind = kind or _HTTP_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"message": message, "type": kind, "param": param, "code": code or _HTTP_CODES.get(status)}
    return JSONResponse({"error": body}, status_code=status, headers=headers)


async def on_omni_error(request: Request, error: Exception) -> Response:
    """Answer with one of our own errors; those that are the server's fault are logged."""
    assert isinstance(error, OmniError)
    log_service_error(request.scope, error)
    seconds = getattr(error, "retry_after_s", None) or RETRY_AFTER_S
    headers = {"Retry-After": str(seconds)} if error.http_status in (429, 503) else None
    return JSONResponse({"error": error_object(error)}, status_code=error.http_status, headers=headers)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer with what Starlette or a middleware refused."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers=error.headers)
    message = error.detail
    if message == http.HTTPStatus(error.status_code).phrase:  # Starlette's own text says less than we know
        hint = _HTTP_HINTS.get(error.status_code, "{detail}")
        message = hint.format(method=request.method, path=request.url.path, detail=message)
    return error_response(error.status_code, message, headers=dict(error.headers or {}))


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Answer nobody: the client left while it was sending."""
    logger.info("request %s: the client left while it was sending the body", request_id(request.scope))
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer 500 without the reason: it is a bug of ours, and uvicorn logs it with its traceback."""
    label = request_id(request.scope)
    # This runs outside of our middleware, which labels every other answer.
    return error_response(500, unexpected_message(label), headers={"X-Request-Id": label})


def unexpected_message(label: str) -> str:
    """Return what a client is told of a bug."""
    return f"the server failed at request {label}; its log has the reason"


def log_service_error(scope: Any, error: OmniError) -> None:
    """Log `error` if the server, not the client, has to do something about it."""
    if error.http_status >= 500:
        logger.error("request %s failed: %s", request_id(scope), error)


def request_id(scope: Any) -> str:
    """Return the id that the client gave the request, or the one made for it."""
    return str(scope.get("state", {}).get("request_id", "-"))


HANDLERS: dict[Any, Any] = {
    OmniError: on_omni_error,
    HTTPException: on_http_error,
    ClientDisconnect: on_disconnect,
    Exception: on_unexpected_error,
}
