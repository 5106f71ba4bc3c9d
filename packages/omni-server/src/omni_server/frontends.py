"""`--api-server-count K`: K server processes on one port, each with its own replica groups (FE-01 to FE-08).

The parent checks the configuration, holds the port so that a conflict is found first, starts the frontends and watches them. A
frontend is this program again, with its number. It listens when everything that it owns is ready, so that the system sends it
no connection before. Whichever process ends, the others end too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from omni_core.errors import ConfigError, OmniError
from omni_server import listening
from omni_server.arguments import model_of
from omni_server.frontend_flags import FLAG
from omni_server.stopping import EXIT_CODES, StopSignal

if TYPE_CHECKING:
    from omni_core.stage import ResolvedPipeline

logger = logging.getLogger(__name__)

KILL_AFTER_S = 40.0
"""Seconds in which a frontend must have ended after its sessions, then its requests, have had their time to drain."""


def resolve_for_frontends(args: argparse.Namespace) -> ResolvedPipeline:
    """Return the deployment for all frontends.

    Raises:
        ConfigError: Its sessions cannot be split so (FE-02 to FE-04), or it has none.
    """
    from omni_core.deploy.flags import typed_flags
    from omni_core.deploy.resolve import resolve_deployment

    given = typed_flags(args)
    files, overrides = given.pop("deploy_config", None), given.pop("stage_overrides", None)
    resolved = resolve_deployment(
        model_of(args),
        deploy_config=files,
        flags=given,
        stage_overrides=overrides,
        frontend_count=args.api_server_count,
    )
    if resolved.duplex is None:
        raise ConfigError(
            f"{args.api_server_count} server processes are for full-duplex sessions, and the session mode is turn",
            where=FLAG,
            hint=f"set {FLAG} 1; one process serves turns, and num_replicas gives stages more of them",
            param="api_server_count",
        )
    return resolved


def check_flags(args: argparse.Namespace) -> None:
    """Refuse combinations that several frontends cannot have.

    Raises:
        ConfigError: There is one; the message names the flags.
    """
    if args.api_server_count < 1:
        raise ConfigError(f"there must be at least 1 process, not {args.api_server_count}", where=FLAG, hint=f"set {FLAG} 1")
    if args.api_server_count == 1:
        return
    if args.headless or args.stage_id is not None:
        message = "several frontends run all their stages on this host (DP-08)"
        raise ConfigError(message, where=f"{FLAG} with --stage-id or --headless", hint="use one or the other")
    if args.uds and args.accept != "shared":
        message = "processes cannot each have a socket under one path"
        raise ConfigError(message, where=f"{FLAG} with --uds", hint="set --accept shared")
    if args.enable_control_routes or args.voices_dir:
        name = "--enable-control-routes" if args.enable_control_routes else "--voices-dir"
        message = "what it changes would change in one of the processes only (FE-10)"
        raise ConfigError(message, where=f"{FLAG} with {name}", hint=f"leave {name} out, or set {FLAG} 1")


def run_frontends(args: argparse.Namespace) -> int:
    """Run the frontends until a signal, and return the exit code.

    Raises:
        OmniError: The port is taken, the configuration is wrong, or a frontend ended by itself.
    """
    resolve_for_frontends(args)
    with _port(args) as sock:
        return asyncio.run(_Parent(args, sock).run())


@contextlib.contextmanager
def _port(args: argparse.Namespace) -> Iterator[socket.socket]:
    with listening.bind(args.host, args.port, args.uds, reuse_port=args.accept == "reuseport") as sock:
        if args.accept == "shared":
            listening.allow_restart(sock)
            sock.set_inheritable(True)
        yield sock


class _Parent:
    """Start the frontends, say when all of them are ready, and end them together."""

    def __init__(self, args: argparse.Namespace, sock: socket.socket) -> None:
        self._args = args
        self._sock = sock
        self._frontends: list[asyncio.subprocess.Process] = []

    async def run(self) -> int:
        stop = StopSignal()
        with stop.installed():
            try:
                for index in range(self._args.api_server_count):
                    self._frontends.append(await self._start(index))
                ended = await self._until_one_ends(stop)
            finally:
                await self._end_all()
        if ended is not None:
            code = self._frontends[ended].returncode
            raise OmniError(
                f"frontend {ended} ended with exit code {code}, and the others with it", hint="the log above has the reason"
            )
        assert stop.number is not None, "it was a frontend's end or a signal"
        return EXIT_CODES[stop.number]

    async def _start(self, index: int) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "omni_core", *sys.argv[1:], "--frontend-index", str(index)]
        inherited: Sequence[int] = ()
        if self._args.accept == "shared":
            inherited = (self._sock.fileno(),)
            command += ["--frontend-socket", str(self._sock.fileno())]
        else:
            command += ["--port", str(self._sock.getsockname()[1])]
        from omni_core.engine.watch import WATCH_ENV, Watched

        env = {**os.environ, WATCH_ENV: str(Watched.of(os.getpid()))}
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, env=env, pass_fds=inherited, start_new_session=True)

    async def _until_one_ends(self, stop: StopSignal) -> int | None:
        """Return the number of the frontend that ended by itself; None if a signal came first."""
        ends = [asyncio.create_task(frontend.wait()) for frontend in self._frontends]
        telling = asyncio.create_task(self._tell_ready())
        stopping = asyncio.create_task(stop.event.wait())
        try:
            await asyncio.wait({*ends, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return None
            return next(index for index, end in enumerate(ends) if end.done())
        finally:
            for task in (telling, stopping):
                task.cancel()
            await asyncio.gather(telling, stopping, return_exceptions=True)

    async def _tell_ready(self) -> None:
        """Say that the port answers once every frontend has said so. What else they write goes to stderr."""
        readers = [frontend.stdout for frontend in self._frontends if frontend.stdout is not None]
        if all([await _is_ready(reader) for reader in readers]):
            listening.announce(self._sock, self._args.host)
        await asyncio.gather(*map(_pass_on, readers))

    async def _end_all(self) -> None:
        running = [frontend for frontend in self._frontends if frontend.returncode is None]
        for frontend in running:
            frontend.send_signal(signal.SIGTERM)
        waiting: Any = asyncio.gather(*(frontend.wait() for frontend in running))
        try:
            await asyncio.wait_for(waiting, 2 * self._args.shutdown_timeout + KILL_AFTER_S)
        except TimeoutError:
            for frontend in running:
                if frontend.returncode is None:
                    logger.error("a frontend did not end in time and is killed")
                    frontend.kill()
            await asyncio.gather(*(frontend.wait() for frontend in running))


async def _is_ready(reader: asyncio.StreamReader) -> bool:
    """Return whether a frontend says that it listens; False where it ends before that."""
    while line := await reader.readline():
        if line.startswith(b"Listening on "):
            return True
        sys.stderr.write(line.decode(errors="replace"))
    return False


async def _pass_on(reader: asyncio.StreamReader) -> None:
    """Pass on what a plugin or a library writes to stdout, which would stop the frontend once the pipe is full."""
    while data := await reader.read(1 << 16):
        sys.stderr.write(data.decode(errors="replace"))


def watch_parent() -> None:
    """End this frontend when its parent is gone. What the parent leaves is not the frontend's to remove."""
    from omni_core.engine.watch import WATCH_ENV, parse_watched, watch_process

    watch_process(parse_watched(os.environ[WATCH_ENV]))


@contextlib.contextmanager
def frontend_socket(args: argparse.Namespace) -> Iterator[socket.socket]:
    """Give the socket that a frontend listens on when it is ready: one of its own, or the one that all accept from."""
    if args.frontend_socket is None:
        with listening.bind(args.host, args.port, None, reuse_port=True) as sock:
            yield sock
        return
    with contextlib.closing(socket.socket(fileno=args.frontend_socket)) as sock:
        yield sock
