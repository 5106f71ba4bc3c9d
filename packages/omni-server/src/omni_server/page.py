"""GET /ui: a page to talk, to make speech and to chat with the served model. Its files need no build step."""

from __future__ import annotations

from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omni_server.context import ServerContext

TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; media-src blob:; "
    "connect-src 'self' ws: wss:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""The page runs its own scripts and nobody else's, and nobody frames it."""


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module. They need no key: the page asks for it and sends it with what it does."""
    folder = files("omni_server") / "ui"
    found = {item.name: item.read_bytes() for item in folder.iterdir() if item.name.rpartition(".")[2] in TYPES}

    def answer(name: str) -> Response:
        if name not in found:
            raise HTTPException(404)
        headers = {
            "Content-Type": TYPES[name.rpartition(".")[2]],
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Permissions-Policy": "microphone=(self)",
            "Cache-Control": "no-cache",
        }
        return Response(found[name], headers=headers)

    async def page(request: Request) -> Response:
        return answer("index.html")

    async def part(request: Request) -> Response:
        return answer(request.path_params["name"])

    return [Route("/ui", page, methods=["GET"]), Route("/ui/{name}", part, methods=["GET"])]
