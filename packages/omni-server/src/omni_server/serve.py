"""The command `omni serve`: starts an engine and serves it over HTTP until a signal says stop.

The order matters. The port is taken first, so that a taken one is found before minutes of loading; connections are accepted
only when every stage is ready; then `Listening on http://HOST:PORT` goes to stdout, and everything else to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from omni_core.allocator import return_large_buffers
from omni_core.errors import DependencyError, OmniError
from omni_server import frontends, listening
from omni_server.adapters import check_adapters
from omni_server.arguments import add_arguments, make_engine_options, make_settings, model_of, set_environment
from omni_server.context import ServerSettings, ServerState
from omni_server.draining import socket_protocol
from omni_server.stage_flags import read_stage_flags
from omni_server.stopping import EXIT_CODES, StopSignal

if TYPE_CHECKING:
    import uvicorn

    from omni_duplex.manager import SessionManager
    from omni_server.engine import Engine

logger = logging.getLogger(__name__)

CLOSE_LIMIT_S = 30.0
"""Seconds that the engine may take to end its stages."""


class ServeCommand:
    """Serve a model over HTTP.

    Args:
        make_engine: Makes the engine from the parsed arguments; by default an AsyncOmni.
    """

    def __init__(self, make_engine: Callable[[argparse.Namespace], Engine] | None = None) -> None:
        self._make_engine = make_engine or make_async_omni

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of `omni serve`."""
        from omni_core.deploy.flags import add_deploy_flags

        parser.usage = "%(prog)s MODEL [options]"
        add_arguments(parser)
        add_deploy_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serve, or work for a head elsewhere, until SIGTERM (exit code 0) or SIGINT (130); a second signal kills at once.

        Raises:
            OmniError: The port cannot be taken, the configuration is wrong, or a stage did not start.
        """
        from omni_core.logs import setup_logging

        setup_logging("worker" if args.headless else "server")
        return_large_buffers()
        stage_flags = read_stage_flags(args)
        if stage_flags is not None and stage_flags.headless:
            from omni_server.headless import run_worker

            return run_worker(args, stage_flags)
        args.stage_flags = stage_flags
        frontends.check_flags(args)
        if args.frontend_index is not None:
            frontends.watch_parent()
        elif args.api_server_count > 1:
            return frontends.run_frontends(args)
        _log_uvicorn(args.uvicorn_log_level)
        settings = make_settings(args)
        is_one = args.frontend_index is None
        with listening.bind(args.host, args.port, args.uds) if is_one else frontends.frontend_socket(args) as sock:
            return asyncio.run(self._serve(args, settings, sock))

    async def _serve(self, args: argparse.Namespace, settings: ServerSettings, sock: socket.socket) -> int:
        begin = time.monotonic()
        set_environment(args)
        stop = StopSignal()
        with stop.installed():
            engine = self._make_engine(args)
            try:
                check_adapters(settings.lora_modules, engine.pipeline)
                started = await stop.or_done(engine.start())
                if started:
                    logger.info("ready in %.1f s", time.monotonic() - begin)
                    await self._listen(args, engine, settings, sock, stop)
            finally:
                await _close(engine)
        assert stop.number is not None
        logger.info("stopped by %s", stop.number.name)
        return EXIT_CODES[stop.number]

    async def _listen(
        self, args: argparse.Namespace, engine: Engine, settings: ServerSettings, sock: socket.socket, stop: StopSignal
    ) -> None:
        from omni_server.app import build_app

        state = ServerState(sessions=make_sessions(engine))
        if state.sessions is not None and not await stop.or_done(_warm_up(state.sessions, settings)):
            return
        app = build_app(engine, settings, state=state)
        server = _make_server(app, args, lambda: listening.announce(sock, args.host))
        listening.allow_restart(sock)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        telling = asyncio.create_task(_tell(engine, args.log_stats))
        stopping = asyncio.create_task(stop.event.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            logger.info("stopping: no new requests, up to %g s for those that run", args.shutdown_timeout)
        state.stopping.set()
        if state.sessions is not None:
            await state.sessions.close("shutdown", args.shutdown_timeout)
        server.should_exit = True
        stopping.cancel()
        await serving
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        if stop.number is None:
            raise OmniError("the HTTP server ended by itself", hint="the log above has the reason")


def make_sessions(engine: Engine) -> SessionManager | None:
    """Return what holds the duplex sessions of a deployment, None where its session mode is turn.

    Raises:
        DependencyError: The deployment has them and omni-duplex is not installed.
    """
    pipeline = engine.pipeline
    if pipeline is None or pipeline.duplex is None:
        return None
    try:
        from omni_duplex.service import make_manager
    except ImportError as error:
        hint = "pip install omni-duplex, or set session_mode: turn"
        raise DependencyError("omni-duplex is not installed", where="session_mode: duplex", hint=hint) from error
    return make_manager(engine, pipeline)  # type: ignore[arg-type]


async def _warm_up(sessions: SessionManager, settings: ServerSettings) -> None:
    """Let the sessions' replicas hear silence, where the deployment asks for it, before anybody can connect."""
    from omni_duplex.service import first_config

    await sessions.warm_up(first_config(sessions, settings.model))


async def _tell(engine: Engine, interval_s: float | None) -> None:
    """Log a line of statistics for each interval, if there is one."""
    if interval_s is not None:
        await engine.telemetry.stats_line().run(interval_s)


def make_async_omni(args: argparse.Namespace) -> Engine:
    """Return the engine that the arguments describe, not started."""
    from omni_core.client import AsyncOmni
    from omni_core.deploy.flags import typed_flags

    if args.frontend_index is not None:
        from omni_core.deploy.frontend_part import frontend_part

        part = frontend_part(frontends.resolve_for_frontends(args), args.frontend_index)
        return AsyncOmni.from_resolved(part, options=make_engine_options(args))
    if args.stage_flags is not None:
        from omni_server.headless import make_head

        return make_head(args, args.stage_flags)
    return AsyncOmni(model_of(args), options=make_engine_options(args), **typed_flags(args))


def _make_server(app: Any, args: argparse.Namespace, on_ready: Callable[[], None]) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """A server that says when it accepts connections, and leaves the signals to us."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_ready()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        _end_quietly(app),
        log_config=None,  # its own would write the access log to stdout
        access_log=args.uvicorn_log_level in ("info", "debug"),
        lifespan="off",
        root_path=args.root_path,
        server_header=False,
        timeout_graceful_shutdown=args.shutdown_timeout,
        ws=socket_protocol(),
        ws_per_message_deflate=False,  # audio does not shrink
    )
    return Server(config)


def _end_quietly(app: Any) -> Any:
    """Return `app` with one line, not a traceback, for requests that outlive the time to drain."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # the server's last word to a request: nothing above this waits for it
            label = scope.get("state", {}).get("request_id", "-")
            logger.warning("request %s is cut off: it did not end in time and the server is stopping", label)

    return wrapped


def _log_uvicorn(level: str) -> None:
    """Send uvicorn's own lines to stderr, from `level` on."""
    uvicorn_logger = logging.getLogger("uvicorn")
    uvicorn_logger.setLevel(level.upper())
    if level in ("info", "debug"):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("(server) %(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S"))
        uvicorn_logger.addHandler(handler)
        uvicorn_logger.propagate = False


async def _close(engine: Engine) -> None:
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await engine.close(0)  # requests had their time when the HTTP server ended
    except TimeoutError:
        logger.error("the engine did not end within %g s; its processes end with this one", CLOSE_LIMIT_S)


command = ServeCommand()
