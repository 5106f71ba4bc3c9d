"""What a stage host tells the orchestrator at regular intervals: that it lives, how full it is, and what it has measured."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from omni_core.engine.messages import Heartbeat, Measured, Progress
from omni_core.errors import StageDeadError
from omni_core.observe.stage import note_processes
from omni_core.runner import StageRunner

logger = logging.getLogger(__name__)

HEARTBEAT_S = 2.0


class Heart:
    """Beat for a stage.

    Args:
        runner: The stage's runner, which is asked whether it can work.
        where: The stage, for the log.
        send: Sends a message to the orchestrator.
        die: Called when the engine is gone.
    """

    def __init__(
        self,
        runner: StageRunner,
        where: str,
        send: Callable[[Any], Awaitable[None]],
        die: Callable[[StageDeadError], None],
    ) -> None:
        self._runner = runner
        self._where = where
        self._send = send
        self._die = die
        self._processes: dict[str, int] = {"host": os.getpid()}

    def know(self, facts: Mapping[str, Any]) -> None:
        """Learn of the engine's own processes from the runner's facts."""
        pids = facts.get("core_pids") or ()
        self._processes |= {f"engine{index or ''}": int(pid) for index, pid in enumerate(pids)}

    async def run(self, load: Callable[[], dict[str, Any]], moved: Callable[[], list[str]]) -> None:
        """Beat until cancelled.

        Args:
            load: Returns the stage's sizes.
            moved: Returns the requests on which the stage has worked since it was last asked.
        """
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._runner.check()
            except StageDeadError as error:
                self._die(error)
            except TimeoutError:
                logger.warning("%s: the engine did not answer a check within %g s", self._where, HEARTBEAT_S)
            await self._send(Heartbeat(load()))
            if ids := moved():
                await self._send(Progress(ids))
            note_processes(self._runner.metrics, self._processes)
            await self.tell()
            await asyncio.sleep(HEARTBEAT_S)

    async def tell(self) -> None:
        """Send what was measured since the last time."""
        if changes := self._runner.metrics.take():
            await self._send(Measured(changes))
