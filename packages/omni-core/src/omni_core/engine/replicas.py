"""A stage's replicas: their start, the choice of one for a request, their restart and their end."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from omni_core.deploy.devices import replica_devices
from omni_core.engine.devices import DeviceSet, device_set, hold
from omni_core.engine.edge import Place
from omni_core.engine.local_process import LocalProcess
from omni_core.engine.meeting import Meeting
from omni_core.engine.messages import FromHost
from omni_core.engine.options import EngineOptions, LbPolicy
from omni_core.engine.run_dir import RunDir
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.errors import OmniError, RequestError, StageDeadError
from omni_core.platforms import Platform
from omni_core.stage import ResolvedStage

if TYPE_CHECKING:
    from omni_core.engine.control import Control
    from omni_core.engine.remote.head import Head

logger = logging.getLogger(__name__)

MAX_BACKOFF_S = 60.0
STABLE_S = 600.0
"""A replica that has run for so long begins its count of restarts anew."""


@dataclass(frozen=True)
class Launcher:
    """What the processes of all stages are started with."""

    run_dir: RunDir
    context: BaseContext
    platform: Platform
    options: EngineOptions
    stream_slots: int = 0
    """Requests whose chunks a stage works on at once; 0 is no limit."""
    meeting: Meeting | None = None
    """Where connectors meet if stages belong to several processes of users; None where this process starts all of them."""
    control: Control | None = None
    """Who knows what operators told the stages; None where nobody can."""

    def place(self, replica: int) -> Place:
        """Return what the connectors of a replica are told."""
        if self.meeting is None:
            return Place(replica, self.run_dir.path, self.run_dir.run_id)
        return Place(replica, self.meeting.path, self.meeting.group, self.meeting.address)


class Replica(ABC):
    """One copy of a stage, over the lives of its process, on whatever host."""

    def __init__(self, stage: ResolvedStage, number: int) -> None:
        self.stage = stage
        self.number = number
        self.restarts = 0
        """Restarts in all."""
        self.reason = ""
        """Why the last process ended, or the last restart failed."""

    @property
    @abstractmethod
    def process(self) -> StageProcess:
        """The present process."""

    @property
    def state(self) -> StageState:
        """Where it is in its life."""
        return self.process.state

    @abstractmethod
    async def start(self) -> None:
        """Return when its first process takes requests.

        Raises:
            StageStartError: It did not become ready.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End its process."""

    def dead_error(self) -> StageDeadError:
        """Return what requests that need this replica are told."""
        if self.state is not StageState.RESTARTING:
            return self.process.dead_error(self.reason)
        return self.process.dead_error(self.reason, hint="it is being restarted; try again")

    def health(self) -> dict[str, Any]:
        """Return its state, load and history."""
        process = self.process
        return {
            "stage_id": self.stage.stage_id,
            "name": self.stage.topology.model_stage,
            "replica": self.number,
            "state": str(self.state),
            "reason": "" if self.state is StageState.READY else process.reason or self.reason,
            "pid": process.pid,
            "restarts": self.restarts,
            "in_flight": process.in_flight,
            **process.load,
        }


class LocalReplica(Replica):
    """One copy of a stage on this host, whose processes this one starts.

    Args:
        stage: What it runs.
        number: Which copy it is.
        devices: Its devices.
        launcher: How its processes start.
        on_message: Called with each message of its present process.
        on_death: Called when a process that was ready is gone.
        on_ready: Called when a restart has succeeded.
    """

    def __init__(
        self,
        stage: ResolvedStage,
        number: int,
        devices: DeviceSet,
        launcher: Launcher,
        on_message: Callable[[StageProcess, FromHost], None],
        on_death: Callable[[StageProcess], None],
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(stage, number)
        self._in_a_row = 0
        self._devices = devices
        self._launcher = launcher
        self._on_message = on_message
        self._on_death = on_death
        self._on_ready = on_ready
        self._ready_at = 0.0
        self._restarting: asyncio.Task[None] | None = None
        self._process = self._make()

    @property
    def process(self) -> LocalProcess:
        """The present process."""
        return self._process

    def _make(self) -> LocalProcess:
        launcher = self._launcher
        return LocalProcess(
            self.stage,
            self.number,
            launcher.run_dir,
            launcher.place(self.number),
            launcher.context,
            self._devices.environment,
            self._on_message,
            self._note_death,
            silence_s=launcher.options.stage_heartbeat_timeout_s,
            stream_slots=launcher.stream_slots,
            life=self.restarts,
        )

    @property
    def state(self) -> StageState:
        """Where it is in its life."""
        if self._restarting is not None and not self._restarting.done():
            return StageState.RESTARTING
        return super().state

    async def start(self) -> None:
        """Start its process, after others on the same devices (DV-07).

        Raises:
            StageStartError: It did not become ready.
        """
        limit = self._launcher.options.stage_init_timeout_s
        async with hold(self._devices.locks, limit, who=f"stage {self.process.name}"):
            await self.process.start(limit)
        self._ready_at = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """End its process, and a restart that is under way."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self.process.stop()

    def _note_death(self, process: StageProcess) -> None:
        self.reason = process.reason
        now = asyncio.get_running_loop().time()
        if now - self._ready_at > STABLE_S:
            self._in_a_row = 0
        # One that dies before its restart is complete is that restart's matter.
        if self.state is not StageState.RESTARTING and self._may_restart(process):
            self._restarting = asyncio.create_task(self._restart())
        self._on_death(process)

    def _may_restart(self, process: StageProcess) -> bool:
        policy, control = self.stage.restart, self._launcher.control
        if policy.when != "on-failure" or self._in_a_row >= policy.max:
            return False
        if control is None or not (hindrance := control.why_not_again(self.stage.stage_id)):
            return True
        process.reason = self.reason = f"{process.reason}, and it is not restarted: {hindrance}"
        logger.error("stage %s stays dead: %s", process.name, self.reason)
        return False

    async def _restart(self) -> None:
        policy = self.stage.restart
        while self._in_a_row < policy.max:
            pause = min(MAX_BACKOFF_S, policy.backoff_s * 2**self._in_a_row)
            self.restarts += 1
            self._in_a_row += 1
            logger.warning("stage %s: restart %d of %d in %g s", self.process.name, self._in_a_row, policy.max, pause)
            await asyncio.sleep(pause)
            await self.process.stop(0)
            self.process.remove_log()
            self._process = self._make()
            try:
                await self.start()
                if self._launcher.control is not None:
                    await self._launcher.control.bring_back(self.process)
            except Exception as error:  # noqa: BLE001 - whatever hinders it, the next restart may go better
                self.reason = error.message if isinstance(error, OmniError) else repr(error)
                self.process.fail(self.reason)
                logger.error("stage %s: the restart failed: %s", self.process.name, self.reason)
            else:
                self._restarting = None
                self._on_ready()
                return
        logger.error("stage %s stays dead after %d restarts", self.process.name, self._in_a_row)


class ReplicaPool:
    """All replicas of one stage.

    Args:
        stage: The stage.
        replicas: The replicas, by number.
        policy: How one is chosen for a request.
        choice: Source of random choices.
    """

    def __init__(
        self, stage: ResolvedStage, replicas: Sequence[Replica], policy: LbPolicy, choice: random.Random | None = None
    ) -> None:
        self.stage = stage
        self.replicas = list(replicas)
        self._policy = policy
        self._random = choice or random.Random()
        self._turn = 0

    @property
    def ready(self) -> list[StageProcess]:
        """The processes that take requests."""
        return [replica.process for replica in self.replicas if replica.state is StageState.READY]

    @property
    def leaving(self) -> list[StageProcess]:
        """The processes that take no new requests and finish those that were taken in before."""
        return [replica.process for replica in self.replicas if replica.state is StageState.LEAVING]

    def let_go(self, process: StageProcess) -> None:
        """Tell a process that leaves that no request needs it any more."""
        raise AssertionError("replicas on this host do not leave")

    @property
    def members(self) -> list[Replica]:
        """The replicas that have to do what an operator asks of the stage."""
        return self.replicas

    @property
    def has_room(self) -> bool:
        """Whether a further request would run at once."""
        return any(process.has_room for process in self.ready or self.leaving)

    @property
    def is_restarting(self) -> bool:
        """Whether a replica is on its way back."""
        return any(replica.state is StageState.RESTARTING for replica in self.replicas)

    def choose(self, wanted: int | None = None) -> StageProcess:
        """Choose a replica for a request, by the policy, among those with room if there are any (DV-10).

        One that leaves is chosen where there is no other: the request was taken in before.

        Args:
            wanted: The one that the request must run on, if it must.

        Raises:
            StageDeadError: None is ready, or not that one.
            RequestError: There is no such replica.
        """
        if wanted is not None:
            if not 0 <= wanted < len(self.replicas):
                raise RequestError(
                    f"stage {self.stage.name} has no replica {wanted}",
                    param="replicas",
                    hint=f"choose one from 0 to {len(self.replicas) - 1}",
                )
            replica = self.replicas[wanted]
            if replica.state not in (StageState.READY, StageState.LEAVING):
                raise replica.dead_error()
            return replica.process
        ready = self.ready or self.leaving
        if not ready:
            raise self.dead_error()
        candidates = [process for process in ready if process.has_room] or ready
        match self._policy:
            case LbPolicy.RANDOM:
                return self._random.choice(candidates)
            case LbPolicy.ROUND_ROBIN:
                return self._in_turn(candidates)
            case LbPolicy.LEAST_QUEUE_LENGTH:
                least = min(process.in_flight for process in candidates)
                return self._in_turn([process for process in candidates if process.in_flight == least])

    def _in_turn(self, candidates: Sequence[StageProcess]) -> StageProcess:
        # By number and not by place in the list, so that a replica with no room now does not shift the others' turns.
        count = len(self.replicas)
        chosen = min(candidates, key=lambda process: (process.replica - self._turn) % count)
        self._turn = (chosen.replica + 1) % count
        return chosen

    def check(self, wanted: int | None = None) -> None:
        """Raise StageDeadError if no replica takes new requests, or the wanted one leaves."""
        if not self.ready:
            raise self.dead_error()
        if wanted is not None and any(process.replica == wanted for process in self.leaving):
            raise self.replicas[wanted].dead_error()

    def dead_error(self) -> StageDeadError:
        """Return what requests are told when no replica is ready."""
        hopeful = [replica for replica in self.replicas if replica.state is StageState.RESTARTING]
        return (hopeful or self.replicas)[0].dead_error()

    def hint_after(self, process: StageProcess) -> str:
        """Return what the callers of requests can do that were lost with one of the processes."""
        returns = self.stage.restart.when == "on-failure" or any(other is not process for other in self.ready)
        return "send it again" if returns else "restart the server"

    async def stop(self) -> None:
        """Stop every replica."""
        await asyncio.gather(*(replica.stop() for replica in self.replicas))


def make_pool(
    stage: ResolvedStage,
    launcher: Launcher,
    head: Head | None,
    on_message: Callable[[StageProcess, FromHost], None],
    on_death: Callable[[StageProcess], None],
    on_ready: Callable[[], None],
) -> ReplicaPool:
    """Return a stage's pool: of replicas that start here, or of those that workers bring to `head`."""
    if head is not None and head.is_remote(stage.stage_id):
        return head.pool(stage, launcher.options, on_message, on_death, on_ready, launcher.control)
    replicas = local_replicas(stage, launcher, on_message, on_death, on_ready)
    return ReplicaPool(stage, replicas, launcher.options.lb_policy)


def local_replicas(
    stage: ResolvedStage,
    launcher: Launcher,
    on_message: Callable[[StageProcess, FromHost], None],
    on_death: Callable[[StageProcess], None],
    on_ready: Callable[[], None],
) -> list[LocalReplica]:
    """Return a stage's replicas on this host, not started; the functions are those of LocalReplica."""
    sets = [device_set(launcher.platform, devices, name=stage.name) for devices in replica_devices(stage)]
    return [
        LocalReplica(stage, number, devices, launcher, on_message, on_death, on_ready) for number, devices in enumerate(sets)
    ]
