"""The head's side of registration: who may bring a stage, and what happens until its messages flow. In the server's process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
import zmq.asyncio

from omni_core.deploy.agreement import disagreement
from omni_core.engine.channel import READ_AHEAD, Channel
from omni_core.engine.meeting import Meeting, host_mark
from omni_core.engine.messages import FromHost
from omni_core.engine.options import EngineOptions
from omni_core.engine.remote.connection import tune
from omni_core.engine.remote.messages import (
    NONCE_BYTES,
    SAME_VERSION,
    TICKET_BYTES,
    Challenge,
    Hello,
    Refused,
    Register,
    ToHead,
    Welcome,
    decode,
    difference,
    is_proven,
    preamble,
    prove,
)
from omni_core.engine.remote.seats import RemotePool, RemoteProcess, Told
from omni_core.engine.remote.settings import HeadOptions, addresses
from omni_core.engine.stage_process import StageProcess
from omni_core.errors import ConfigError, OmniError
from omni_core.plugins import plugin_manager
from omni_core.stage import ResolvedPipeline, ResolvedStage

if TYPE_CHECKING:
    from omni_core.engine.control import Control

logger = logging.getLogger(__name__)

MAX_HANDSHAKES = 1024
"""Handshakes under way; the oldest is forgotten for a further one."""
MAX_HANDSHAKE_BYTES = 1 << 20
MAX_UNREAD = 8
"""Messages of one connection that wait for the head, or for the worker."""
ATTACH_TIMEOUT_S = 15.0
"""Longest time from a Welcome to the worker's connection."""
MAX_STRANGERS = 128
"""Connections that may be open without a ticket: each holds a descriptor and what was sent on it."""
FIRST_HINT_S = 5.0
HINT_S = 30.0


class Head:
    """Let workers register, and give the orchestrator their stages' pools.

    Args:
        pipeline: The whole pipeline.
        options: Where to listen, and which stages are not for workers.
        facts: What workers must agree on (`omni_core.deploy.agreement`).
        command: Returns how a worker for a stage is started, for hints.
    """

    def __init__(
        self, pipeline: ResolvedPipeline, options: HeadOptions, facts: Mapping[str, str], command: Callable[[int], str]
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._facts = facts
        self._command = command
        self._pools: dict[int, RemotePool] = {}
        self._nonces: dict[bytes, bytes] = {}
        self._tickets: dict[bytes, RemoteProcess] = {}
        self._strangers: set[asyncio.StreamWriter] = set()
        """Connections that have shown no ticket yet."""
        self._mark = host_mark()
        self._meeting: Meeting | None = None
        self._context: zmq.asyncio.Context | None = None
        self._data: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cross_host = {
            entry.target: entry.cross_host for _, found in plugin_manager().collect("omni_connectors") for entry in found
        }

    @property
    def own_stages(self) -> frozenset[int]:
        """Stages that are not for workers."""
        return self._options.own_stages

    def is_remote(self, stage_id: int) -> bool:
        """Return whether workers run a stage."""
        return stage_id not in self._options.own_stages

    def pool(
        self,
        stage: ResolvedStage,
        options: EngineOptions,
        on_message: Callable[[StageProcess, FromHost], None],
        on_death: Callable[[StageProcess], None],
        on_change: Callable[[], None],
        control: Control | None = None,
    ) -> RemotePool:
        """Return the pool of a remote stage; from now on workers can register for it.

        Args:
            stage: The stage.
            options: Limits, and the choice of a replica.
            on_message: As for a replica on this host, like the other two functions.
            on_death: Called when a process that was ready is gone.
            on_change: Called when a replica is ready, or leaves.
            control: Who knows what operators told the stages.
        """
        told = Told(on_message, on_death, on_change)
        command = self._command(stage.stage_id)
        pool = RemotePool(stage, options, told, self._options.heartbeat_timeout_s, command, control)
        self._pools[stage.stage_id] = pool
        return pool

    async def open(self) -> Meeting:
        """Listen at the address of the head, and return where its own connectors meet those of workers on this host.

        Raises:
            ConfigError: The address is taken, or is not one of this host.
        """
        address = self._options.address
        ip = addresses(address.host)[0]
        self._context = zmq.asyncio.Context()
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.IPV6, int(":" in ip))
        # Whoever floods this port costs the head little memory: a few messages for each connection.
        router.setsockopt(zmq.MAXMSGSIZE, MAX_HANDSHAKE_BYTES)
        router.setsockopt(zmq.RCVHWM, MAX_UNREAD)
        router.setsockopt(zmq.SNDHWM, MAX_UNREAD)
        try:
            router.bind(f"tcp://[{ip}]:{address.port}" if ":" in ip else f"tcp://{ip}:{address.port}")
        except zmq.ZMQError as error:
            where = f"--omni-master-address {address.host} --omni-master-port {address.port}"
            hint = "give an address of this host, and a port that is free"
            raise ConfigError(f"the head cannot listen at {address}: {error.strerror}", where=where, hint=hint) from error
        self._data = await asyncio.start_server(self._connected, ip, 0, limit=READ_AHEAD)
        group = hashlib.sha256(f"{address}|{sorted(self._facts.items())}".encode()).hexdigest()[:16]
        self._meeting = Meeting.found(group, ip)
        self._spawn(self._serve(router))
        self._spawn(self._tell_missing())
        logger.info("the head listens for workers at %s (stage messages at port %d)", address, self._port)
        return self._meeting

    async def close(self) -> None:
        """Stop listening. May be called twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._data is not None:
            self._data.close()
        for writer in self._strangers:
            writer.transport.abort()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
        if self._meeting is not None:
            self._meeting.leave()
            self._meeting = None

    @property
    def _port(self) -> int:
        assert self._data is not None
        return int(self._data.sockets[0].getsockname()[1])

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The handshake

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 2:
                logger.warning("a message of %d frames came to the head's port; it is no worker's", len(frames))
                continue
            try:
                answer = self._answer(frames[0], frames[1])
            except OmniError as error:
                logger.warning("a worker is turned away: %s", error)
                answer = Refused(error.message, error.hint)
            except Exception:  # what comes to an open port must not end the head; the log has it
                logger.exception("a message to the head's port failed")
                answer = Refused("the head failed; its log says more", final=False)
            await router.send_multipart([frames[0], msgspec.msgpack.encode(answer)])

    def _answer(self, identity: bytes, data: bytes) -> Challenge | Welcome | Refused:
        if different := difference(preamble(data)):
            raise ConfigError(f"the worker's version is not the head's: {different}", hint=SAME_VERSION)
        message = decode(data, ToHead, "a worker")
        if isinstance(message, Hello):
            while len(self._nonces) >= MAX_HANDSHAKES:
                del self._nonces[next(iter(self._nonces))]
            nonce = secrets.token_bytes(NONCE_BYTES)
            self._nonces[identity] = message.nonce + nonce
            return Challenge(nonce)
        nonces = self._nonces.pop(identity, None)
        if nonces is None:
            return Refused("the head does not know this handshake; it may have been started again", final=False)
        who = f"the worker of stage {message.stage_id} on {message.host} ({message.address})"
        if not is_proven(message, self._options.address.token, nonces):
            hint = "give every command the same token, by OMNI_TOKEN or --omni-token"
            raise ConfigError("the worker's token is not the head's", where=who, hint=hint)
        if (pool := self._pools.get(message.stage_id)) is not None and pool.is_closed:
            return Refused("the head is stopping", final=False)
        self._check(message, who)
        return self._welcome(message, who, nonces)

    def _check(self, message: Register, who: str) -> None:
        """Raise ConfigError for a worker whose stage cannot be used."""
        stage_id = message.stage_id
        if stage_id not in self._pools:
            known = ", ".join(f"{pool.stage.name}" for pool in self._pools.values()) or "none"
            what = "the head runs it itself" if stage_id in self._options.own_stages else "there is no such stage"
            raise ConfigError(f"no worker is wanted for stage {stage_id}: {what}", where=who, hint=f"wanted are {known}")
        if different := disagreement(self._facts, message.facts):
            files = ", ".join(message.files) or "none"
            ours = ", ".join(self._pipeline.files) or "none"
            hint = f"give every command the same model and the same --deploy-config (head: {ours}; worker: {files})"
            raise ConfigError(f"the worker's deployment differs from the head's in {different}", where=who, hint=hint)
        if hindrance := self._pools[stage_id].why_not(message):
            raise ConfigError(hindrance, where=who, hint="have the stage read its weights again first, or restart the head")
        stage = self._pools[stage_id].stage
        for edge in (*stage.inputs, *stage.outputs):
            other = edge.from_stage if edge.to_stage == stage_id else edge.to_stage
            if self._cross_host.get(edge.target, False) or self._marks(other) <= {message.host_mark}:
                continue
            crossing = " and ".join(sorted(name for name, cross in self._cross_host.items() if cross)) or "none is installed"
            raise ConfigError(
                f"the edge from stage {edge.from_stage} to stage {edge.to_stage} uses connector {edge.connector!r}, which "
                f"works within one host, and stage {other} is on another one than this worker",
                where=who,
                hint="name a connector for this edge that can cross hosts in the deploy file of every command "
                f"({crossing}), or start both stages on one host with one folder for temporary files",
            )

    def _marks(self, stage_id: int) -> set[str]:
        """Return the marks of the hosts that a stage runs on now."""
        if not self.is_remote(stage_id):
            return {self._mark}
        return {seat.worker.host_mark for seat in self._pools[stage_id].seats if seat.worker is not None}

    def _welcome(self, message: Register, who: str, nonces: bytes) -> Welcome:
        assert self._meeting is not None
        seat = self._pools[message.stage_id].take_seat(message)
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._tickets[ticket] = seat.process
        asyncio.get_running_loop().call_later(ATTACH_TIMEOUT_S, self._expire, ticket)
        logger.info("%s registered (process %d), as replica %d", who, message.pid, seat.number)
        bare = Welcome(b"", self._meeting.group, seat.number, self._port, ticket)
        return prove(bare, self._options.address.token, nonces)

    def _expire(self, ticket: bytes) -> None:
        process = self._tickets.pop(ticket, None)
        if process is not None:
            process.kill(f"its worker did not connect within {ATTACH_TIMEOUT_S:g} s")

    # The connections

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process = None
        self._strangers.add(writer)
        try:
            if len(self._strangers) <= MAX_STRANGERS:
                async with asyncio.timeout(ATTACH_TIMEOUT_S):
                    process = self._tickets.pop(await reader.readexactly(TICKET_BYTES), None)
        except (OSError, asyncio.IncompleteReadError):
            logger.debug("a connection to the head's port for stage messages ended before its ticket")
        finally:
            self._strangers.discard(writer)
        if process is None:
            writer.transport.abort()
            return
        tune(writer, self._options.heartbeat_timeout_s)
        channel: Channel[FromHost] = Channel(reader, writer, FromHost, f"the worker on {process.host}")
        process.attach(channel)

    # Hints

    async def _tell_missing(self) -> None:
        """Say from time to time which stages nobody runs, and how one is started."""
        await asyncio.sleep(FIRST_HINT_S)
        while True:
            for pool in self._pools.values():
                if pool.missing:
                    logger.warning("no worker runs stage %s; start one with: %s", pool.stage.name, pool.command)
            await asyncio.sleep(HINT_S)
