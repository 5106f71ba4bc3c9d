"""A worker: the process of `omni serve --headless`, which runs replicas of one stage for a head elsewhere.

It registers, starts the stage's processes as a server does, and passes messages on between them and the head. A head that is
gone may come back: the worker forgets its requests, keeps what is loaded and registers again, and gives up after a while.
A worker that is to stop tells the head, which lets it go when its requests are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import zmq.asyncio

from omni_core.deploy.devices import replica_devices
from omni_core.deploy.explain import describe_stage
from omni_core.engine import fork_server
from omni_core.engine.devices import DeviceSet, device_set
from omni_core.engine.meeting import Meeting, host_mark
from omni_core.engine.messages import (
    Call,
    Died,
    Fault,
    Forget,
    FromHost,
    Heartbeat,
    Leaving,
    Ready,
    Reply,
    Shutdown,
    StartFailed,
)
from omni_core.engine.options import EngineOptions
from omni_core.engine.orders import Orders
from omni_core.engine.remote.join import Link, join
from omni_core.engine.remote.memory import Memory
from omni_core.engine.remote.messages import Register
from omni_core.engine.remote.settings import WorkerOptions, address_towards
from omni_core.engine.replicas import Launcher, LocalReplica
from omni_core.engine.run_dir import RunDir
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.errors import OmniError, ServiceError, StageStartError
from omni_core.platforms import Platform
from omni_core.stage import ResolvedPipeline

logger = logging.getLogger(__name__)

T = TypeVar("T")

BEAT_S = 1.0
PAUSE_S = 0.2
"""Before the head is asked again that has ended a connection."""


class Worker:
    """Run every replica of one stage that belongs to this process.

    Args:
        pipeline: The whole pipeline, with this process's settings for its stage.
        options: Which stage, and where the head is.
        facts: What must agree with the head (`omni_core.deploy.agreement`).
        limits: Deadlines.
        platform: How processes start and are shown their devices.
    """

    def __init__(
        self,
        pipeline: ResolvedPipeline,
        options: WorkerOptions,
        facts: Mapping[str, str],
        limits: EngineOptions,
        platform: Platform,
    ) -> None:
        self.pipeline = pipeline
        self.options = options
        self.limits = limits
        self.platform = platform
        self.stage = next(stage for stage in pipeline.stages if stage.stage_id == options.stage_id)
        self.facts = facts
        self.seats: list[Seat] = []
        self.finished = asyncio.Event()
        """Set when no request runs any more, and what is left is to end the stage's processes."""
        self._context = fork_server.context_for(platform, [self.stage])
        self._run_dir: RunDir | None = None

    async def run(self) -> None:
        """Run until every replica has ended or left, or one cannot start. Cancelled, it ends them.

        Raises:
            ConfigError: The head refuses this worker.
            StageStartError: A replica did not become ready.
            StageDeadError: The last replica has ended.
            DeadlineError: The head was not there, or is gone for good.
        """
        logger.info("%s", describe_stage(self.stage))
        for text in self.pipeline.warnings:
            logger.warning("%s", text)
        self._run_dir = RunDir.create()
        sets = [device_set(self.platform, devices, name=self.stage.name) for devices in replica_devices(self.stage)]
        context = zmq.asyncio.Context()
        self.seats = [Seat(self, devices, context) for devices in sets]
        try:
            await _until_over([seat.run() for seat in self.seats])
        finally:
            self.finished.set()
            await asyncio.gather(*(seat.close() for seat in self.seats))
            context.destroy(linger=0)
            self._run_dir.remove()

    def leave(self) -> None:
        """Take no new requests; `run` returns when those under way have ended, and at once where there are none."""
        for seat in self.seats:
            seat.leave()

    def launcher(self, meeting: Meeting) -> Launcher:
        """Return what the stage's processes start with."""
        assert self._run_dir is not None
        slots = int(self.pipeline.values.get("active_stream_window") or 0)
        return Launcher(self._run_dir, self._context, self.platform, self.limits, slots, meeting)

    def offer(self, replica: int, life: str, orders: Orders) -> Register:
        """Return what a replica registers with; arguments as in `Register`."""
        address = self.options.address
        return Register(
            b"",
            self.stage.stage_id,
            replica,
            dict(self.facts),
            list(self.pipeline.files),
            socket.gethostname(),
            host_mark(),
            self.own_address() or address.host,
            os.getpid(),
            life,
            dict(orders.told),
            orders.weights,
        )

    def own_address(self) -> str:
        """Return where this host can be reached: what the user gave, or this host's address on the way to the head."""
        try:
            return self.options.replica_address or address_towards(self.options.address.host, self.options.address.port)
        except OmniError:
            return ""  # the head's name is not known now; registering says so


async def _until_over(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait until all works have ended, or one has failed before any replica was lost: a loss leaves the others their work."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        lost: OmniError | None = None
        for task in asyncio.as_completed(tasks):
            try:
                await task
            except Lost as error:
                logger.error("%s", error.cause)
                lost = error.cause
        if lost is not None:
            raise lost
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Lost(Exception):
    """Carry why a replica that was ready has ended for good."""

    def __init__(self, cause: OmniError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Left(Exception):
    """Tell that a replica that leaves has nothing to finish."""


class Seat:
    """One replica of the worker's stage, and its connection to the head.

    Args:
        worker: Whose it is.
        devices: Its devices.
        context: ZeroMQ's.
    """

    def __init__(self, worker: Worker, devices: DeviceSet, context: zmq.asyncio.Context) -> None:
        self._worker = worker
        self._devices = devices
        self._context = context
        self._number = -1
        self._life = secrets.token_hex(8)
        self._meeting: Meeting | None = None
        self._replica: LocalReplica | None = None
        self._link: Link | None = None
        self._starting: asyncio.Task[None] | None = None
        self._start_s = 0.0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._memory = Memory()
        self._is_leaving = False

    @property
    def state(self) -> StageState:
        """Where its process is in its life."""
        return StageState.STARTING if self._replica is None else self._replica.state

    async def run(self) -> None:
        """Serve one head after another until the replica or the head is gone for good, or the replica has left.

        Raises:
            OmniError: As `Worker.run`.
        """
        with contextlib.suppress(Left):
            await self._run()

    async def _run(self) -> None:
        options = self._worker.options
        logger.info("registering stage %s with the head at %s", self._worker.stage.name, options.address)
        while not self._is_leaving:
            joining = asyncio.ensure_future(join(self._context, options, self._offer))
            link = await self._or_over(joining)
            logger.info("registered with the head at %s as replica %d", options.address, link.replica)
            try:
                await self._settle(link)
                await self._or_over(asyncio.ensure_future(self._serve(link)))
            except Left:
                link.channel.abort()
                raise
            if self.state in (StageState.STARTING, StageState.READY) and not self._is_leaving:
                logger.warning("the head at %s is gone; waiting %g s for it", options.address, options.head_timeout_s)
            await asyncio.sleep(PAUSE_S)

    def leave(self) -> None:
        """Take no new requests; `run` returns when those under way have ended, and at once where there are none."""
        self._is_leaving = True
        if self._link is not None and self.state is StageState.READY:
            self._post(Leaving())
        elif not self._over.done():
            self._over.set_exception(Left())

    def _offer(self) -> Register:
        self._memory.is_stale = False
        return self._worker.offer(self._number, self._life, self._memory.orders)

    async def close(self) -> None:
        """End the replica and tell the head."""
        if self._link is not None:
            fault = Fault(ServiceError.__name__, "its worker was stopped")
            with contextlib.suppress(ServiceError):
                self._link.channel.post(Died(fault) if self.state is StageState.READY else StartFailed(fault))
            await self._link.channel.close()
        await self._end_replica()
        if self._over.done():
            self._over.exception()

    async def _or_over(self, work: asyncio.Future[T]) -> T:
        """Await `work`, or raise why the replica is gone for good, whichever comes first."""
        try:
            waited: set[asyncio.Future[Any]] = {work, self._over}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._over.done():
                self._over.result()
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    # The replica

    async def _settle(self, link: Link) -> None:
        """Have the replica in the place that the head gave it: as it is, or started there."""
        place = self._meeting
        if place is not None and place.group == link.group and self._number == link.replica:
            return
        await self._end_replica()
        self._number = link.replica
        self._meeting = await asyncio.to_thread(lambda: Meeting.enter(link.group, self._worker.own_address()))
        self._replica = LocalReplica(
            self._worker.stage,
            link.replica,
            self._devices,
            self._worker.launcher(self._meeting),
            self._pass_on,
            self._note_death,
            self._tell_ready,
        )
        self._starting = asyncio.create_task(self._start(self._replica))

    async def _start(self, replica: LocalReplica) -> None:
        begun = time.monotonic()
        try:
            await replica.start()
        except Exception as error:  # noqa: BLE001 - whatever hinders the start, the head and the user are told
            self._post(StartFailed(Fault.of(error)))
            if not self._over.done():
                name = replica.process.name
                self._over.set_exception(
                    error if isinstance(error, OmniError) else StageStartError(f"stage {name} did not start: {error!r}")
                )
        else:
            self._start_s = time.monotonic() - begun
            self._tell_ready()

    async def _end_replica(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._replica is not None:
            await self._replica.stop()
        if self._meeting is not None:
            self._meeting.leave()
        self._starting = self._replica = self._meeting = None
        self._memory = Memory()

    def _tell_ready(self) -> None:
        if self._replica is not None and self._replica.state is StageState.READY:
            self._post(Ready(dict(self._replica.process.facts), self._start_s))

    def _note_death(self, process: StageProcess) -> None:
        self._memory = Memory()
        self._post(Died(Fault(ServiceError.__name__, process.reason)))
        self._end_if_dead()

    def _end_if_dead(self) -> None:
        """Give up a replica that nothing brings back."""
        replica = self._replica
        if replica is not None and replica.state is StageState.DEAD and not self._over.done():
            hint = "see its log; start the worker again"
            self._over.set_exception(Lost(replica.process.dead_error(replica.reason, hint)))

    # The head

    def _post(self, message: FromHost) -> None:
        if self._link is None:
            return
        try:
            self._link.channel.post(message)
        except ServiceError as error:
            logger.error("the connection to the head is given up: %s", error)
            self._link.channel.abort()

    def _pass_on(self, process: StageProcess, message: FromHost) -> None:
        if isinstance(message, Reply):
            self._memory.answer(self._link, message)
        self._post(message)
        self._register_anew_if_stale()

    def _register_anew_if_stale(self) -> None:
        """End a connection whose head was told of orders that a call of an earlier head has changed since."""
        if self._memory.is_stale and self._link is not None:
            logger.warning("a call of an earlier head has ended; registering again")
            self._link.channel.abort()

    async def _serve(self, link: Link) -> None:
        """Pass messages on until the head or its connection is gone."""
        self._link = link
        beating = asyncio.create_task(self._beat())
        self._tell_ready()
        self._register_anew_if_stale()
        is_lost = True
        try:
            while (message := await link.channel.receive()) is not None:
                if isinstance(message, Shutdown):
                    logger.info("%s", "the last request is finished" if self._is_leaving else "the head stops")
                    break
                if self._replica is not None:
                    if isinstance(message, Call):
                        self._memory.ask(link, message)
                    self._replica.process.post(message)
        except ServiceError as error:
            logger.error("the connection to the head is given up: %s", error)
        except asyncio.CancelledError:
            is_lost = False  # `close` has something to say on it
            raise
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            if is_lost:
                self._lose(link)

    def _lose(self, link: Link) -> None:
        """Drop a connection that is lost, and the requests that came over it."""
        self._link = None
        link.channel.abort()
        if self._replica is not None:
            self._replica.process.post(Forget())

    async def _beat(self) -> None:
        while True:
            self._end_if_dead()
            self._post(Heartbeat(dict(self._replica.process.load) if self._replica is not None else {}))
            await asyncio.sleep(BEAT_S)
