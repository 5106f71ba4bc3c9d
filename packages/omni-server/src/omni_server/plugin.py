"""The plugin of omni-server: the commands `serve`, `bench` and `talk`, and the routes of the OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omni_core.commands import CommandEntry
from omni_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from omni_server.context import ServerContext


@hookimpl
def omni_commands() -> Iterable[CommandEntry]:
    """Offer `omni serve`, `omni bench` and `omni talk`."""
    return [
        CommandEntry(name="serve", summary="serve a model over HTTP", target="omni_server.serve:command"),
        CommandEntry(name="bench", summary="put load on a server and measure it", target="omni_server.bench.command:command"),
        CommandEntry(
            name="talk", summary="speak with a server and hear its answers", target="omni_server.talk.command:command"
        ),
    ]


@hookimpl
def omni_routes(context: ServerContext) -> Iterable[BaseRoute]:
    """Offer the speech, voices, conversation, transcription, status, metrics, profiler, configuration and control routes."""
    from omni_server import (
        chat,
        configuration,
        metrics,
        operations,
        page,
        profiler,
        realtime,
        realtime_http,
        speech,
        speech_stream,
        status,
        transcriptions,
        voices,
    )

    modules = (
        status,
        metrics,
        profiler,
        configuration,
        operations,
        speech,
        speech_stream,
        voices,
        chat,
        transcriptions,
        realtime,
        realtime_http,
        page,
    )
    return [route for module in modules for route in module.routes(context)]
