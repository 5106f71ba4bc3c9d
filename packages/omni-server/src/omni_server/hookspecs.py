"""The hooks that the server calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omni_core.hookspecs import hookspec

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from omni_server.context import ServerContext


@hookspec
def omni_routes(context: ServerContext) -> Iterable[BaseRoute]:  # type: ignore[empty-body]
    """Offer routes of the HTTP server.

    Called once in the server's process, when the application is built and the engine may still be starting. Two distributions
    that offer one method of one path are an error that names both. Return an empty list to offer none.
    """
