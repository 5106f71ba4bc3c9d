"""A stage's process on this host: start, handshake, log, end. Its life as the orchestrator sees it is `stage_process`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from omni_core.engine import fork_server, host_process
from omni_core.engine.channel import Channel, accept_one
from omni_core.engine.edge import Place
from omni_core.engine.messages import Fault, FromHost, Ready, Shutdown, StartFailed
from omni_core.engine.run_dir import RunDir
from omni_core.engine.stage_host import STOP_TIMEOUT_S
from omni_core.engine.stage_log import StageLog
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.errors import ServiceError, StageStartError
from omni_core.stage import ResolvedStage

logger = logging.getLogger(__name__)

DEFAULTS = {
    # Several stages share one machine; with more threads than cores a step takes ten times as long.
    "OMP_NUM_THREADS": "1",
    # oneDNN keeps the kernels of the last 1024 shapes otherwise, 0.2 MiB each: batches of any size, for each layer.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    **fork_server.QUIET,
}
"""Variables that a stage's process gets where the server has none."""
TERM_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 5.0
_LAST_WORDS_S = 0.5
"""How long the end of a channel and the end of its process may be apart."""


class LocalProcess(StageProcess):
    """Start and stop one replica of a stage, and carry messages to and from it.

    Args:
        stage: What to run.
        replica: Which copy of it.
        run_dir: Where its socket and log go.
        place: What its connectors are told.
        context: How its process is made.
        environment: Variables that its process gets besides those of the stage.
        on_message: Called with each message of a ready stage but heartbeats.
        on_death: Called once when a ready stage is gone, unless it was stopped.
        silence_s: Seconds without a sign of life after which it, or its engine, is killed.
        stream_slots: Requests whose chunks it works on at once; 0 is no limit.
        life: How often this replica was started before.
    """

    def __init__(
        self,
        stage: ResolvedStage,
        replica: int,
        run_dir: RunDir,
        place: Place,
        context: BaseContext,
        environment: Mapping[str, str],
        on_message: Callable[[StageProcess, FromHost], None],
        on_death: Callable[[StageProcess], None],
        *,
        silence_s: float,
        stream_slots: int = 0,
        life: int = 0,
    ) -> None:
        super().__init__(stage, replica, on_message, on_death)
        self._silence_s = silence_s
        self._stream_slots = stream_slots
        self._run_dir = run_dir
        self._place = place
        self._context = context
        defaults = {name: os.environ.get(name, value) for name, value in DEFAULTS.items()}
        self._environment = {**defaults, **environment, **stage.env}
        self._short = f"stage{stage.stage_id}-{stage.topology.model_stage}" + (f"-{replica}" if stage.num_replicas > 1 else "")
        # Each life has its own files, so that nobody meets what an earlier one left.
        self._file_name = f"{self._short}.{life}" if life else self._short
        self._log = StageLog(run_dir.log(self._file_name), self._short)
        self._process: BaseProcess | None = None
        self._pidfd: int | None = None
        self._exited = asyncio.Event()

    @property
    def silence_s(self) -> float:
        """Seconds without a message after which it counts as dead."""
        return self._silence_s

    # Start

    async def start(self, timeout_s: float) -> None:
        """Start the process and wait until it is ready.

        Raises:
            StageStartError: It reported a failure, ended, or was not ready within `timeout_s`.
        """
        self._tasks.append(asyncio.create_task(self._log.follow()))
        path = self._run_dir.socket(self._file_name)
        server, connection = await accept_one(path, FromHost, f"stage {self.name}")
        try:
            async with asyncio.timeout(timeout_s):
                await self._fork(path, timeout_s)
                answer = await self._first_answer(connection)
        except TimeoutError:
            raise self._start_error(f"was not ready within {timeout_s:g} s", "raise --stage-init-timeout") from None
        finally:
            server.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            if self._channel is None and connection.done() and not connection.cancelled():
                self._channel = connection.result()  # the start was given up as it came: `stop` closes it
        match answer:
            case Ready(facts=facts, seconds=seconds):
                self.facts, self.state = facts, StageState.READY
                logger.info("stage %s ready in %.1f s", self.name, seconds)
            case StartFailed(fault=fault):
                raise self._reported(fault)
            case _:
                await self._wait_exit(_LAST_WORDS_S)
                raise self._start_error(f"{self._ending()} while it started")
        self._serve()

    async def _fork(self, socket: str, timeout_s: float) -> None:
        spec = host_process.HostSpec(
            stage=self.stage,
            place=self._place,
            run_dir=self._run_dir.path,
            socket=socket,
            log=self._log.path,
            server=self._run_dir.server,
            environment={
                host_process.INIT_TIMEOUT_ENV: f"{timeout_s:g}",
                host_process.HEARTBEAT_TIMEOUT_ENV: f"{self._silence_s:g}",
                **self._environment,
            },
            process_name=self._short,
            log_level=logging.getLevelName(logging.getLogger("omni_core").getEffectiveLevel()),
            stream_slots=self._stream_slots,
        )
        loop = asyncio.get_running_loop()
        forked: asyncio.Future[BaseProcess] = loop.create_future()

        def fork() -> None:
            try:
                process = fork_server.start_process(self._context, host_process.main, (spec,), self._short)
            except Exception as error:  # noqa: BLE001 - told to the waiter
                _call_loop(loop, _resolve, forked, None, error)
                return
            _call_loop(loop, _resolve, forked, process, None)

        # Blocks while the fork server still imports. A daemon thread, so that giving up does not wait for it.
        threading.Thread(target=fork, name=f"omni-fork-{self._short}", daemon=True).start()
        try:
            self._process = await forked
            self.pid = self._process.pid
        except (OSError, EOFError) as error:
            raise self._start_error(f"could not be forked: {error}") from error
        try:
            self._pidfd = os.pidfd_open(self.pid or 0)
        except ProcessLookupError:
            self._exited.set()
        else:
            loop.add_reader(self._pidfd, self._note_exit)

    async def _first_answer(self, connection: asyncio.Future[Channel[FromHost]]) -> FromHost | None:
        """Return the first message, or None if the process ended or closed its channel without one."""

        async def answer() -> FromHost | None:
            self._channel = await connection
            return await self._channel.receive()

        answering = asyncio.ensure_future(answer())
        ended = asyncio.ensure_future(self._exited.wait())
        try:
            await asyncio.wait({answering, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                # What it said last may still be on its way.
                await asyncio.wait({answering}, timeout=_LAST_WORDS_S)
            return answering.result() if answering.done() else None
        finally:
            answering.cancel()
            ended.cancel()

    def _reported(self, fault: Fault) -> StageStartError:
        unexpected = fault.kind == ServiceError.__name__
        kind = "" if unexpected else f"{fault.kind}: "
        place = f"{fault.where}: " if fault.where and self.stage.name not in fault.where else ""
        return StageStartError(
            f"stage {self.name} did not start: {kind}{place}{fault.message}{self.log_tail() if unexpected else ''}",
            hint=fault.hint,
            param=fault.param,
        )

    def _start_error(self, what: str, hint: str = "") -> StageStartError:
        return StageStartError(f"stage {self.name} {what}{self.log_tail()}", hint=hint)

    # Life

    def kill(self, reason: str) -> None:
        """End the process at once; the death is then noticed as any other."""
        self.reason = self.reason or reason
        if self._process is not None and not self._exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or 0, signal.SIGKILL)

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the stage's log, ready to go behind a message."""
        self._log.read()
        tail = list(self._log.tail)[-lines:]
        return "".join(f"\n    {line}" for line in ["; its log ends with:", *tail]) if tail else ""

    def _note_exit(self) -> None:
        assert self._pidfd is not None
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        self._exited.set()
        if self.state is StageState.READY:
            # Not the end of its messages: they are read to the end of the file first, with a deadline.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._note_death)

    async def _wait_ending(self) -> None:
        await self._wait_exit(_LAST_WORDS_S)

    def _ending(self) -> str:
        if self._process is None or not self._exited.is_set():
            return "closed its channel"
        # The fork server reports the exit code a moment after the end.
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None:
            return "ended"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    # Stop

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask the process to leave, then insist: Shutdown, SIGTERM, SIGKILL."""
        was, self.state = self.state, StageState.STOPPED
        if self._process is not None:
            if was is StageState.READY and self._channel is not None:
                with contextlib.suppress(ServiceError):
                    self._channel.post(Shutdown())
                await self._wait_exit(timeout_s)
            if was is StageState.READY:
                self._signal(signal.SIGTERM)
                await self._wait_exit(TERM_TIMEOUT_S)
            # One that still starts has nothing to finish, and what loads may be deaf to anything else.
            self._signal(signal.SIGKILL)
            await self._wait_exit(KILL_TIMEOUT_S)
            await asyncio.to_thread(_release, self._process)
            self._process = None
        await self._end_channel()
        self._log.read()

    def remove_log(self) -> None:
        """Remove the log file of a process that has ended; its lines have been passed on."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._log.path)

    async def _wait_exit(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and not self._exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or 0, number)


def _release(process: BaseProcess) -> None:
    process.join(1.0)
    # Gives back the descriptor that waits for its exit code. One that cannot be killed keeps it.
    with contextlib.suppress(ValueError):
        process.close()


def _call_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    # A loop that has ended meanwhile has nobody to tell.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _resolve(future: asyncio.Future[BaseProcess], process: BaseProcess | None, error: Exception | None) -> None:
    if future.done():
        # The start was given up while the process was forked.
        if process is not None:
            process.kill()
    elif process is not None:
        future.set_result(process)
    else:
        future.set_exception(error or RuntimeError("no process"))
