"""The replicas of a stage that workers bring, from the head's side: each is a seat that a worker takes and may lose again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omni_core.engine.channel import Channel
from omni_core.engine.messages import FromHost, Heartbeat, Leaving, Ready, Shutdown, StartFailed
from omni_core.engine.options import EngineOptions
from omni_core.engine.orders import UNNAMED
from omni_core.engine.remote.messages import Register
from omni_core.engine.replicas import Replica, ReplicaPool
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.errors import OmniError, ServiceError, StageDeadError, StageStartError
from omni_core.stage import ResolvedStage

if TYPE_CHECKING:
    from omni_core.engine.control import Control

logger = logging.getLogger(__name__)

WAY_OUT = "send it again when a worker for the stage is there"


@dataclass(frozen=True)
class Told:
    """Whom a remote stage tells; the functions are those of the orchestrator."""

    on_message: Callable[[StageProcess, FromHost], None]
    on_death: Callable[[StageProcess], None]
    on_change: Callable[[], None]
    """Called when a replica takes requests, or takes none any more because it leaves."""


class RemoteProcess(StageProcess):
    """A stage's process on another host, at the other end of its worker's connection.

    Args:
        stage: What it runs.
        replica: Its number.
        told: Whom to tell.
        silence_s: Seconds without a message after which it counts as dead.
        worker: What it registered with; None for a seat that nobody has taken yet.
        on_ready: Called when it has loaded the stage.
        on_leaving: Called when its worker has said that it stops.
    """

    def __init__(
        self,
        stage: ResolvedStage,
        replica: int,
        told: Told,
        silence_s: float,
        worker: Register | None = None,
        on_ready: Callable[[], None] | None = None,
        on_leaving: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(stage, replica, self._hear, told.on_death)
        self.worker = worker
        self.pid = worker.pid if worker else None
        self.is_leaving = False
        """Whether its worker has said that it stops."""
        self.is_let_go = False
        """Whether its worker was told that no request needs it any more."""
        self._told = told
        self._on_ready = on_ready or told.on_change
        self._on_leaving = on_leaving or told.on_change
        self._silence = silence_s

    @property
    def name(self) -> str:
        """`1 (vocoder)`, with the replica where there are several or it is one more than the deployment says."""
        return super().name if self.replica < self.stage.num_replicas else f"{self.stage.name} replica {self.replica}"

    @property
    def host(self) -> str:
        """Name and address of its host."""
        return f"{self.worker.host} ({self.worker.address})" if self.worker else "nowhere"

    @property
    def silence_s(self) -> float:
        """Seconds without a message after which it counts as dead."""
        return self._silence

    def attach(self, channel: Channel[FromHost]) -> None:
        """Use the connection that its worker has made; one that comes too late is closed."""
        if self.state is not StageState.STARTING:
            channel.abort()
            return
        self._channel = channel
        self._tasks += [asyncio.create_task(self._begin(channel)), asyncio.create_task(self._watch())]

    def let_go(self) -> None:
        """Tell the worker, which stops, that no request needs the process any more."""
        self.is_let_go = True
        self.post(Shutdown())

    def _hear(self, process: StageProcess, message: FromHost) -> None:
        if not isinstance(message, Leaving):
            self._told.on_message(process, message)
        elif not self.is_leaving:
            self.is_leaving = True
            logger.info("stage %s leaves: its worker on %s stops, with %d requests", self.name, self.host, self.in_flight)
            self._on_leaving()

    def kill(self, reason: str) -> None:
        """End the connection at once. The process is its worker's to end."""
        self.reason = self.reason or reason
        if self._channel is None:
            if self.state is StageState.STARTING:
                self.fail(self.reason)
            return
        self._channel.abort()
        # The end of a connection is noticed by who reads it, but this death must not depend on that.
        asyncio.get_running_loop().call_soon(self._note_death)

    def lose(self, reason: str) -> None:
        """End the connection, and note the death at once instead of when it is noticed."""
        self.kill(reason)
        if self.state is StageState.STARTING:
            self.fail(reason)
        self._note_death()

    def dead_error(self, reason: str = "", hint: str = WAY_OUT) -> StageDeadError:
        """Return what requests that need this stage are told."""
        return super().dead_error(reason, hint)

    async def stop(self) -> None:
        """Tell the worker that the head stops, and close the connection."""
        was, self.state = self.state, StageState.STOPPED
        if self._channel is not None and was in (StageState.READY, StageState.STARTING):
            try:
                self._channel.post(Shutdown())
            except ServiceError:
                self._channel.abort()
        await self._end_channel()

    async def _begin(self, channel: Channel[FromHost]) -> None:
        """Read until the stage is ready, then as from any stage."""
        try:
            while (message := await channel.receive()) is not None:
                self._silent_s = 0
                match message:
                    case Heartbeat(load=load):
                        self.load = load
                    case Ready(facts=facts, seconds=seconds):
                        self.facts, self.state = facts, StageState.READY
                        logger.info("stage %s ready on %s after %.1f s", self.name, self.host, seconds)
                        self._on_ready()
                        break
                    case StartFailed(fault=fault):
                        self.reason = fault.message
                        break
                    case _:
                        raise ServiceError(f"it sent {type(message).__name__} before it was ready", where=channel.peer)
        except ServiceError as error:
            self.reason = self.reason or str(error)
        if self.state is StageState.READY:
            await self._receive()
        elif self.state is StageState.STARTING:
            self.fail(self.reason or f"its worker on {self.host} {self._ending()} before it was ready")
            logger.error("stage %s did not start: %s", self.name, self.reason)
            channel.abort()

    def _ending(self) -> str:
        if self.is_let_go:
            return f"has left, since its worker on {self.host} was stopped"
        return "closed the connection" if self.state is StageState.STARTING else f"lost its worker on {self.host}"

    def _log_end(self) -> StageState:
        if not self.is_let_go:
            return super()._log_end()
        logger.info("stage %s has left: its worker on %s was stopped", self.name, self.host)
        return StageState.STOPPED


class RemoteReplica(Replica):
    """One seat of a stage."""

    def __init__(self, stage: ResolvedStage, number: int, pool: RemotePool) -> None:
        super().__init__(stage, number)
        self._pool = pool
        self._returning: asyncio.Task[None] | None = None
        """Tells the process what its stage was told before."""
        self._process = RemoteProcess(stage, number, pool.told, pool.silence_s)

    @property
    def process(self) -> RemoteProcess:
        """The present process."""
        return self._process

    @property
    def state(self) -> StageState:
        """Where it is in its life."""
        found = super().state
        if found is not StageState.READY:
            return found
        if self._returning is not None:
            return StageState.STARTING
        return StageState.LEAVING if self._process.is_leaving else found

    @property
    def worker(self) -> Register | None:
        """The worker that has the seat."""
        return self._process.worker if self.state in (StageState.STARTING, StageState.READY, StageState.LEAVING) else None

    def take(self, worker: Register) -> RemoteProcess:
        """Give the seat, which is free, to a worker."""
        if self._process.worker is not None:
            self.restarts += 1
        self.reason = ""
        told = (self._note_ready, self._note_leaving)
        self._process = RemoteProcess(self.stage, self.number, self._pool.told, self._pool.silence_s, worker, *told)
        return self._process

    def dead_error(self) -> StageDeadError:
        """Return what requests that need this replica are told."""
        if self.state is not StageState.LEAVING:
            return super().dead_error()
        return StageDeadError(f"stage {self._process.name} takes no new requests: {self.reason}", hint=WAY_OUT)

    def _note_ready(self) -> None:
        self._returning = asyncio.create_task(self._bring_back(self._process))

    def _note_leaving(self) -> None:
        self.reason = f"its worker on {self._process.host} stops, and finishes the requests that it has"
        self._pool.told.on_change()

    async def _bring_back(self, process: RemoteProcess) -> None:
        """Have the process as its stage is, asleep or with the weights' version, before it takes requests."""
        try:
            if self._pool.control is not None:
                await self._pool.control.bring_back(process, process.worker.told if process.worker else None)
        except OmniError as error:
            logger.error("stage %s cannot be as it was before: %s", process.name, error)
            process.kill(error.message)
        finally:
            if process is self._process:  # else a later one has the seat, and is on its own way back
                self._returning = None
        if process.state is StageState.READY and not process.reason:
            self._pool.note_ready()

    async def start(self) -> None:
        """Return when any replica of the stage takes requests; further ones may come later.

        Raises:
            StageStartError: None did within `--stage-init-timeout`.
        """
        limit = self._pool.start_timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._pool.first_ready.wait()
        except TimeoutError:
            state = self._process.reason or ("it is being loaded" if self.worker else "no worker has registered")
            hint = f"start it with `{self._pool.command}`, or raise --stage-init-timeout"
            raise StageStartError(f"stage {self.stage.name} was not ready within {limit:g} s: {state}", hint=hint) from None

    async def stop(self) -> None:
        """Close the connection."""
        if self._returning is not None:
            self._returning.cancel()
        await self._process.stop()


class RemotePool(ReplicaPool):
    """The seats of one stage: as many as the deployment says, and more when more workers come.

    Args:
        stage: The stage.
        options: Limits, and the choice of a replica.
        told: Whom to tell.
        silence_s: Seconds without a message after which a worker is lost.
        command: How a worker for the stage is started.
        control: Who knows what operators told the stage; None where nobody can.
    """

    def __init__(
        self,
        stage: ResolvedStage,
        options: EngineOptions,
        told: Told,
        silence_s: float,
        command: str,
        control: Control | None = None,
    ) -> None:
        super().__init__(stage, [], options.lb_policy)
        self.told = told
        self.control = control
        self.silence_s = silence_s
        self.command = command
        self.start_timeout_s = options.stage_init_timeout_s
        self.first_ready = asyncio.Event()
        self.is_closed = False
        """Whether the head is stopping."""
        self.seats = [RemoteReplica(stage, number, self) for number in range(stage.num_replicas)]
        self.replicas = list(self.seats)

    @property
    def members(self) -> list[Replica]:
        """The seats that somebody has, and as many empty ones as the deployment lacks: a worker may come and go besides."""
        taken = [seat for seat in self.seats if seat.worker is not None]
        empty = [seat for seat in self.seats if seat.worker is None]
        return [*taken, *empty[: max(0, self.stage.num_replicas - len(taken))]]

    @property
    def leaving(self) -> list[StageProcess]:
        """The processes that take no new requests and finish those that were taken in before."""
        return [seat.process for seat in self.seats if seat.state is StageState.LEAVING and not seat.process.is_let_go]

    def let_go(self, process: StageProcess) -> None:
        """Tell a process that leaves that no request needs it any more."""
        assert isinstance(process, RemoteProcess)
        process.let_go()

    def why_not(self, worker: Register) -> str:
        """Return why a worker's weights may be others than the stage's; empty where they are the same."""
        stage_id = self.stage.stage_id
        known = self.control.weights(stage_id) if self.control is not None else ""
        others = [
            seat for seat in self.seats if seat.worker is not None and not (worker.life and seat.worker.life == worker.life)
        ]
        # Alone, it is the stage: only weights that are gone with their workers must not become the checkpoint's in silence.
        if worker.weights == known != UNNAMED or (not others and (worker.weights or not known)):
            return ""
        changed = "this stage" if known else "this worker"
        return f"a trainer changed the weights of {changed}, and those of the worker and of the stage may not be the same"

    @property
    def missing(self) -> bool:
        """Whether nobody runs the stage, and nobody is about to."""
        return not self.ready and not any(seat.worker for seat in self.seats)

    def take_seat(self, worker: Register) -> RemoteReplica:
        """Give a worker the seat that it had, else the first one that is free, else a new one."""
        for seat in self.seats:
            # A worker may notice before the head that a connection is lost; in another seat it would load the stage anew.
            if seat.worker is not None and worker.life and seat.worker.life == worker.life:
                seat.process.lose("its worker lost the connection")
        free = [seat for seat in self.seats if seat.worker is None]
        wanted = [seat for seat in free if seat.number == worker.replica]
        if not free:
            free = [RemoteReplica(self.stage, len(self.seats), self)]
            self.seats += free
            self.replicas = list(self.seats)
        if worker.weights and self.control is not None:
            self.control.take_over_weights(self.stage.stage_id, worker.weights)
        seat = (wanted or free)[0]
        seat.take(worker)
        return seat

    async def stop(self) -> None:
        """Close every connection; no further seat is given."""
        self.is_closed = True
        await super().stop()

    def hint_after(self, process: StageProcess) -> str:
        """Return what the callers of requests can do that were lost with one of the processes."""
        return "send it again" if any(other is not process for other in self.ready) else WAY_OUT

    def dead_error(self) -> StageDeadError:
        """Return what requests are told when no replica is ready."""
        for seat in self.seats:
            if seat.state is StageState.LEAVING:
                return seat.dead_error()
            if seat.worker is not None:
                return StageDeadError(f"stage {self.stage.name} is being loaded on {seat.process.host}", hint="try again later")
        reason = next((seat.process.reason for seat in self.seats if seat.process.reason), "no worker has registered for it")
        return StageDeadError(f"stage {self.stage.name} is dead: {reason}", hint=WAY_OUT)

    def note_ready(self) -> None:
        """Tell that a replica takes requests."""
        self.first_ready.set()
        self.told.on_change()
