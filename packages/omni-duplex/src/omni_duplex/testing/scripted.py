"""Models that follow a script: what each unit or turn gives is said beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from omni_duplex.model import (
    AudioIn,
    Capabilities,
    DuplexModel,
    DuplexStream,
    Fence,
    Message,
    Output,
    ReplicaPort,
    ResponseOptions,
    SessionConfig,
)

Script = Callable[[Fence], Sequence[Output]]
"""What one unit or turn gives, under a fence."""


class _UnitStream(DuplexStream):
    def __init__(self, model: ScriptedModel, fence: Fence) -> None:
        self._model = model
        self._fence = fence
        self.heard: list[AudioIn] = []

    async def step(self, unit: AudioIn) -> AsyncIterator[Output]:
        self.heard.append(unit)
        number = len(self.heard) - 1
        script = self._model.script
        for output in script[number](self._fence) if number < len(script) else ():
            yield output

    async def cancel(self, new_fence: Fence) -> None:
        self._fence = new_fence

    async def close(self) -> None:
        self._model.close(self)


class ScriptedModel(DuplexModel):
    """A unit model: unit n gives what entry n of the script says, later ones nothing.

    Args:
        script: What units give.
        capabilities: Of the model.
        failing_closes: How many times closing a stream fails before it succeeds.
    """

    plugin_id = "scripted"

    def __init__(
        self, script: Sequence[Script] = (), capabilities: Capabilities | None = None, failing_closes: int = 0
    ) -> None:
        self.script = script
        self.failing_closes = failing_closes
        self.streams: list[DuplexStream] = []
        self.closed: list[DuplexStream] = []
        self._capabilities = capabilities or Capabilities()

    def capabilities(self, replica_cap: int) -> Capabilities:
        """Return what it was made with, for so many sessions on a replica."""
        return replace(self._capabilities, sessions_per_replica=replica_cap)

    async def open(self, config: SessionConfig, replica: ReplicaPort, fence: Fence) -> DuplexStream:
        """Begin the script for a session."""
        stream = self._stream(fence)
        self.streams.append(stream)
        return stream

    def _stream(self, fence: Fence) -> DuplexStream:
        return _UnitStream(self, fence)

    def close(self, stream: DuplexStream) -> None:
        """Note that a stream was closed, or fail as often as was asked for."""
        if self.failing_closes:
            self.failing_closes -= 1
            raise OSError("the script says that closing fails")
        self.closed.append(stream)


class _TurnStream(DuplexStream):
    def __init__(self, model: ScriptedTurnModel) -> None:
        self._model = model
        self.asked: list[tuple[Sequence[Message], ResponseOptions]] = []

    async def respond(self, history: Sequence[Message], options: ResponseOptions, fence: Fence) -> AsyncIterator[Output]:
        number = len(self.asked)
        self.asked.append((history, options))
        script = self._model.script
        for output in script[number](fence) if number < len(script) else ():
            await self._model.gate()
            yield output

    async def close(self) -> None:
        self._model.close(self)


class ScriptedTurnModel(ScriptedModel):
    """A turn model: answer n is what entry n of the script says. `hold` lets outputs wait for `give`."""

    plugin_id = "scripted_turns"

    def __init__(self, script: Sequence[Script] = (), capabilities: Capabilities | None = None) -> None:
        super().__init__(script, replace(capabilities or Capabilities(tools=True, text_input=True), turn_policy="commit"))
        self._held: asyncio.Semaphore | None = None

    def _stream(self, fence: Fence) -> DuplexStream:
        return _TurnStream(self)

    def hold(self) -> None:
        """Let no output go from now on unless `give` says so."""
        self._held = asyncio.Semaphore(0)

    def give(self, count: int = 1) -> None:
        """Let so many outputs go."""
        assert self._held is not None, "hold comes first"
        for _ in range(count):
            self._held.release()

    async def gate(self) -> None:
        """Wait for `give` where outputs are held."""
        if self._held is not None:
            await self._held.acquire()
