"""One process that runs a replica of a stage, as the orchestrator sees it, on whatever host: state, load, channel."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from omni_core.engine.channel import Channel
from omni_core.engine.messages import FromHost, Heartbeat
from omni_core.errors import ServiceError, StageDeadError
from omni_core.stage import ResolvedStage

logger = logging.getLogger(__name__)


class StageState(StrEnum):
    """Where a stage's process is in its life."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    """Of a replica on another host: its worker stops, and it finishes the requests that it has."""
    RESTARTING = "restarting"
    """Of a replica: its process is gone and another one is on its way."""
    DEAD = "dead"
    STOPPED = "stopped"


class StageProcess(ABC):
    """Carry messages to and from a stage's process and notice its end. `LocalProcess` starts one, `RemoteProcess` was brought.

    Args:
        stage: What it runs.
        replica: Which copy of it.
        on_message: Called with each message of a ready stage but heartbeats.
        on_death: Called once when a ready stage is gone, unless it was stopped.
    """

    def __init__(
        self,
        stage: ResolvedStage,
        replica: int,
        on_message: Callable[[StageProcess, FromHost], None],
        on_death: Callable[[StageProcess], None],
    ) -> None:
        self.stage = stage
        self.replica = replica
        self.state = StageState.STARTING
        self.facts: Mapping[str, Any] = {}
        self.load: Mapping[str, Any] = {}
        self.in_flight = 0
        """Requests that were opened in it and have not ended. The orchestrator counts them."""
        self.reason = ""
        """Why a dead stage is dead."""
        self.pid: int | None = None
        """The process's number on its host, once it is known."""
        self._on_message = on_message
        self._on_death = on_death
        self._channel: Channel[FromHost] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._silent_s = 0

    @property
    def name(self) -> str:
        """`0 (talker)`, with the replica where there are several."""
        return self.stage.name if self.stage.num_replicas == 1 else f"{self.stage.name} replica {self.replica}"

    @property
    def has_room(self) -> bool:
        """Whether a further request would run at once; stages that tell no limit always have room."""
        limit = self.facts.get("max_num_seqs")
        return limit is None or self.in_flight < int(limit)

    @property
    @abstractmethod
    def silence_s(self) -> float:
        """Seconds without a message after which it counts as dead."""

    def post(self, message: msgspec.Struct) -> None:
        """Send a message; a stage that leaves too much unread is killed."""
        if self._channel is None or self.state is not StageState.READY:
            return
        try:
            self._channel.post(message)
        except ServiceError as error:
            self.kill(error.message)

    @abstractmethod
    def kill(self, reason: str) -> None:
        """End the process, or the connection to it, at once; the death is then noticed as any other."""

    def fail(self, reason: str) -> None:
        """Note that it did not become ready."""
        self.reason, self.state = reason, StageState.DEAD

    def dead_error(self, reason: str = "", hint: str = "restart the server") -> StageDeadError:
        """Return what requests that need this stage are told."""
        return StageDeadError(f"stage {self.name} is dead: {self.reason or reason}", hint=hint)

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the stage's log, ready to go behind a message; empty where it is on another host."""
        return ""

    def _serve(self) -> None:
        """Begin to read what a ready stage says."""
        self._tasks += [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    async def _receive(self) -> None:
        assert self._channel is not None
        try:
            while (message := await self._channel.receive()) is not None:
                self._silent_s = 0
                if isinstance(message, Heartbeat):
                    self.load = message.load
                else:
                    self._on_message(self, message)
        except ServiceError as error:
            self.kill(str(error))
        await self._wait_ending()
        self._note_death()

    async def _watch(self) -> None:
        # Counts turns of this loop, not time: a server that stood still must not take its stages for silent ones.
        while self.state in (StageState.STARTING, StageState.READY):
            await asyncio.sleep(1.0)
            self._silent_s += 1
            if self._silent_s > self.silence_s:
                self.kill(f"it was silent for {self.silence_s:g} s")

    def _note_death(self) -> None:
        if self.state is not StageState.READY:
            return
        self.reason = self.reason or f"it {self._ending()}"
        self.state = self._log_end()
        self.kill(self.reason)
        self._on_death(self)

    def _log_end(self) -> StageState:
        """Log why it is gone, and return what it is now."""
        logger.error("stage %s is dead: %s%s", self.name, self.reason, self.log_tail())
        return StageState.DEAD

    async def _wait_ending(self) -> None:
        """Wait for a moment for what tells why the channel has ended."""
        return

    def _ending(self) -> str:
        """Return how it ended, for "it ..."."""
        return "closed its channel"

    async def _end_channel(self) -> None:
        """End the tasks and close the channel."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
