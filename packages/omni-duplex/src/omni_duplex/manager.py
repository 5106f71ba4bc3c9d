"""The sessions of one frontend process: opens, resumes and ends them, and holds each one's slot until it is clean."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_core.deploy.duplex import DuplexPlan
from omni_core.deploy.frontends import Frontend
from omni_duplex.batcher import Batcher
from omni_duplex.errors import SERVER, CapacityError, DuplexError
from omni_duplex.lease import Lease
from omni_duplex.meter import Meter
from omni_duplex.model import Capabilities, DuplexModel, DuplexStream, Fence, ReplicaPort, SessionConfig
from omni_duplex.placement import Placement
from omni_duplex.protocol.dialect import Dialect
from omni_duplex.session import events as ev
from omni_duplex.session.actor import Ear, SessionActor, Transcriber
from omni_duplex.session.clock import Clock, LoopClock
from omni_duplex.session.drivers import TurnDriver, UnitDriver, as_duplex_error
from omni_duplex.session.outbox import Channel, Journal, Outbox, Sent
from omni_duplex.session.state import Limits, Session
from omni_duplex.warmup import warm_up

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 10.0
"""Seconds that a model may take to open a stream."""
LATE_TIMEOUT_S = 60.0
"""Seconds in which a stream that nobody waits for any more must have come, to be closed; then its opening is cancelled."""


@dataclass
class Tools:
    """What sessions are made with besides their model."""

    clock: Clock = field(default_factory=LoopClock)
    ear: Callable[[Capabilities, SessionConfig], Ear] | None = None
    """Makes what finds speech; None where turn detection is not offered."""
    transcriber: Transcriber | None = None
    """Writes down what users say, in place of the model."""
    meter: Meter | None = None
    """Counts; None where nobody does."""
    max_lead_s: float | None = 1.0
    """How far a client may be ahead of real time before a unit model lets its audio wait."""


@dataclass(frozen=True)
class Attachment:
    """A socket's hold on a session."""

    actor: SessionActor
    generation: int
    """Its number, from 1."""
    token: str
    """What the client comes back with."""
    channel: Channel
    """What the socket sends."""


@dataclass
class _Entry:
    actor: SessionActor
    lease: Lease = field(default_factory=Lease)


class SessionManager:
    """Hold the sessions of this process.

    Args:
        model: The duplex model.
        plan: Limits and groups of the deployment.
        frontend: This process's groups and share of the sessions.
        port: Returns the way to a replica group.
        tools: Clock, ear and transcriber.
    """

    def __init__(
        self,
        model: DuplexModel,
        plan: DuplexPlan,
        frontend: Frontend,
        port: Callable[[int], ReplicaPort],
        tools: Tools | None = None,
    ) -> None:
        settings = plan.settings
        self.model = model
        self.capabilities = model.capabilities(settings.duplex_max_sessions)
        _check_model(model, self.capabilities)
        self._plan = plan
        self._frontend = frontend
        self._port = port
        self._tools = tools or Tools()
        self.placement = Placement(plan.groups, settings.duplex_max_sessions, frontend, settings.max_sessions)
        self._batcher = Batcher(model, settings.duplex_max_sessions) if model.batches else None
        self._sessions: dict[str, _Entry] = {}
        self._closing = False
        self._lost: dict[str, str] = {}
        """Why a replica died under a session that is being opened, by the session's id."""
        self._late: set[asyncio.Task[Any]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._note_slots()

    @property
    def sessions(self) -> Iterable[SessionActor]:
        """The sessions that are open or being closed."""
        return [entry.actor for entry in self._sessions.values()]

    @property
    def has_ear(self) -> bool:
        """Whether turn detection is offered."""
        return self._tools.ear is not None

    @property
    def has_transcriber(self) -> bool:
        """Whether the user's words can be written down."""
        return self.model.transcribes or self._tools.transcriber is not None

    # -- opening ---------------------------------------------------------------------------------------------------

    async def open(self, dialect: Dialect, config: SessionConfig) -> SessionActor:
        """Open a session, which then waits for `attach`.

        Raises:
            CapacityError: There is no room now.
            DuplexError: The model refuses the configuration, or could not open a stream in time.
        """
        try:
            return await self._open(dialect, config)
        except DuplexError as error:
            if self._tools.meter is not None:
                self._tools.meter.refused(error.code)
            raise

    async def _open(self, dialect: Dialect, config: SessionConfig) -> SessionActor:
        self._check_open()
        session_id = f"sess_{uuid.uuid4().hex}"
        group = self.placement.reserve(session_id)
        self._note_slots()
        self._empty.clear()
        opening: asyncio.Task[DuplexStream] | None = None
        try:
            self.model.validate(config)
            fence = Fence(session_id)
            opening = asyncio.ensure_future(self.model.open(config, self._port(group), fence))
            stream = await asyncio.wait_for(asyncio.shield(opening), OPEN_TIMEOUT_S)
            self._check_open()  # it was told to close while the model opened the stream
            if (reason := self._lost.get(session_id)) is not None:
                raise DuplexError("engine_dead", reason, kind=SERVER, retryable=True, hint="open a new session")
        except TimeoutError as error:
            self._abandon(session_id, opening)
            message = f"the model did not open a session in {OPEN_TIMEOUT_S:g} s"
            raise DuplexError("timeout", message, kind=SERVER, retryable=True) from error
        except BaseException as error:  # a plugin's code or a cancelled opening: the slot is given back in any case
            self._abandon(session_id, opening)
            if isinstance(error, Exception):
                raise as_duplex_error(error) from error
            raise
        return self._begin(session_id, group, config, stream, dialect)

    def _check_open(self) -> None:
        if self._closing:
            raise CapacityError("this server is shutting down")

    def _abandon(self, session_id: str, opening: asyncio.Task[DuplexStream] | None) -> None:
        """Give a slot back once a stream that nobody waits for any more is closed again."""
        task = asyncio.ensure_future(self._close_late(session_id, opening))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _close_late(self, session_id: str, opening: asyncio.Task[DuplexStream] | None) -> None:
        try:
            if opening is not None:
                await (await asyncio.wait_for(opening, LATE_TIMEOUT_S)).close()
        except Exception:  # a plugin's code may raise anything; its client was told already
            logger.debug("session %s: it was abandoned while it opened", session_id, exc_info=True)
        finally:
            self._release(session_id)

    def _begin(
        self, session_id: str, group: int, config: SessionConfig, stream: DuplexStream, dialect: Dialect
    ) -> SessionActor:
        settings = self._plan.settings
        capabilities = self.capabilities
        limits = Limits(
            idle_ttl_s=settings.idle_ttl_s,
            disconnect_grace_s=settings.disconnect_grace_s,
            reaper_interval_s=settings.reaper_interval_s,
            max_pending_input_bytes_per_session=settings.max_pending_input_bytes_per_session,
            max_pending_turns_per_session=settings.max_pending_turns_per_session,
        )
        resumable = capabilities.session_resume and dialect.resumable
        session = Session(session_id, capabilities, config, limits, resumable)
        journal = Journal(settings.resume_replay_ttl_s, settings.resume_replay_max_bytes_per_session) if resumable else None
        dialect.begin(session_id, capabilities, config)
        tools = self._tools

        def driver(post: Any, fence: Any) -> TurnDriver | UnitDriver:
            if capabilities.turn_policy == "commit":
                return TurnDriver(stream, post)
            late = tools.meter.heard_late if tools.meter is not None else lambda _: None
            return UnitDriver(stream, post, capabilities, tools.clock, fence, self._batcher, tools.max_lead_s, late)

        actor = SessionActor(
            session,
            stream,
            driver,
            dialect,
            Outbox(journal, numbered=dialect.numbered),
            tools.clock,
            ear=tools.ear(capabilities, config) if tools.ear is not None else None,
            transcriber=tools.transcriber or self._transcriber(group),
            meter=tools.meter.session() if tools.meter is not None else None,
            on_freed=self._freed,
        )
        self._sessions[session_id] = _Entry(actor)
        return actor

    async def warm_up(self, config: SessionConfig) -> None:
        """Let this process's replica groups hear silence, where the deployment wants that; called before it accepts sessions.

        Raises:
            StageStartError: A group failed.
        """
        frames = self._plan.settings.warmup_frames
        groups = self._frontend.warmed_groups if self._plan.groups else (0,) * (self._frontend.max_sessions > 0)
        if frames > 0:
            await warm_up(self.model, self.capabilities, self._port, groups, frames, config)

    def _transcriber(self, group: int) -> Transcriber | None:
        """Return what writes down what is said in a session of a group; None where the model does not."""
        if not self.model.transcribes:
            return None
        replica = self._port(group)
        return lambda pcm, rate, config: self.model.transcribe(pcm, rate, config, replica)

    # -- sockets ---------------------------------------------------------------------------------------------------

    def attach(self, actor: SessionActor) -> Attachment:
        """Attach the first socket of a session."""
        return self._attach(self._sessions[actor.session.id], (), None)

    def _attach(self, entry: _Entry, replay: Sequence[Sent], first: Callable[[str], dict[str, Any]] | None) -> Attachment:
        actor, lease = entry.actor, entry.lease
        token = lease.grant()
        actor.dialect.attached(lease.generation, token)
        channel = actor.outbox.attach(replay, first(token) if first is not None else None)
        actor.post(ev.Attached(lease.generation))
        return Attachment(actor, lease.generation, token, channel)

    def detach(self, attachment: Attachment) -> None:
        """Note that a socket is gone; one that was taken over does not count."""
        actor = attachment.actor
        entry = self._sessions.get(actor.session.id)
        if entry is not None and entry.lease.generation == attachment.generation:
            actor.outbox.detach()
        actor.post(ev.Detached(attachment.generation))

    def resume(self, session_id: str, token: str, last_seq: int) -> Attachment:
        """Attach another socket to a session, with every event that its client missed.

        A socket that is there is told that it is replaced, and closed. Nothing waits in here, so that two sockets that come at
        once take turns: the second one has an old token.

        Args:
            session_id: The session.
            token: Of its last attachment.
            last_seq: Number of the last event that the client has.

        Raises:
            DuplexError: The session is not there, the token is wrong, or events are lost.
        """
        entry = self._sessions.get(session_id)
        if entry is None or entry.actor.session.is_over or not entry.actor.session.resumable:
            raise DuplexError("unknown_session", f"there is no session {session_id} to come back to", "session_id")
        actor = entry.actor
        entry.lease.check(token)
        if not 0 <= last_seq <= actor.outbox.seq:
            field_name = "last_received_server_event_seq"
            raise DuplexError("invalid_event_ack", f"no event has the number {last_seq} yet", field_name)
        assert actor.outbox.journal is not None, "sessions that can be resumed have a journal"
        replay = actor.outbox.journal.since(last_seq, self._tools.clock.now())
        generation = entry.lease.generation + 1

        def resumed(fresh: str) -> dict[str, Any]:
            facts = {"session_id": session_id, "resume_token": fresh, "attachment_generation": generation}
            return {"type": "session.resumed", **facts, "replayed_events": len(replay)}

        if self._tools.meter is not None:
            self._tools.meter.resumed()
        return self._attach(entry, replay, resumed)

    # -- ending ----------------------------------------------------------------------------------------------------

    def replica_lost(self, stage: int, replica: int, reason: str) -> None:
        """End every session on a dead replica; the others go on."""
        lost = self.placement.lose(stage, replica)
        self._note_slots()
        for session_id in lost:
            if (entry := self._sessions.get(session_id)) is not None:
                entry.actor.post(ev.ReplicaLost(reason))
            else:
                self._lost[session_id] = reason

    def replicas_ready(self, ready: Iterable[tuple[int, int]]) -> None:
        """Place new sessions on these replicas, (stage, replica), and no others: some have come back, or leave."""
        self.placement.only(set(ready))
        self._note_slots()

    async def close(self, reason: str = "shutdown", timeout_s: float = 10.0) -> bool:
        """End every session and take no more; return whether all of them were clean in time."""
        self._closing = True
        for entry in list(self._sessions.values()):
            entry.actor.post(ev.Close(reason))
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            logger.warning("%d duplex sessions could not be closed in %g s", self.placement.held, timeout_s)
            return False
        return True

    def _note_slots(self) -> None:
        if self._tools.meter is not None:
            self._tools.meter.placed(self.placement, len(self._plan.groups))

    def _freed(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)
        self._release(session_id)

    def _release(self, session_id: str) -> None:
        self._lost.pop(session_id, None)
        self.placement.release(session_id)
        self._note_slots()
        if not self.placement.held:
            self._empty.set()


def _check_model(model: DuplexModel, capabilities: Capabilities) -> None:
    """Refuse a model whose capabilities contradict themselves.

    Raises:
        ConfigError: They do; the message names the model.
    """
    from omni_core.errors import ConfigError

    faults = []
    if capabilities.unit_ms <= 0 or capabilities.input_rate * capabilities.unit_ms % 1000:
        faults.append(f"a unit of {capabilities.unit_ms} ms is no whole number of samples at {capabilities.input_rate} Hz")
    if capabilities.turn_policy == "commit" and model.batches:
        faults.append("a turn model has no step_many")
    if capabilities.sessions_per_replica < 1:
        faults.append(f"sessions_per_replica is {capabilities.sessions_per_replica}")
    if faults:
        raise ConfigError(
            f"duplex model {model.plugin_id!r} contradicts itself: {'; '.join(faults)}", hint="correct the plugin"
        )
