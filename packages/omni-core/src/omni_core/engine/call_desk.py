"""Calls of operators to a stage, in its host: done one after the other, in the order in which they came.

Two calls never change an engine at once, and none goes on when its time is over. `control` is the orchestrator's end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from omni_core.engine.messages import Call, Fault, Reply
from omni_core.errors import DeadlineError, OmniError
from omni_core.runner import StageRunner

logger = logging.getLogger(__name__)


class CallDesk:
    """Answer calls.

    Args:
        runner: Who answers.
        where: The stage, for errors.
        send: Sends a message to the orchestrator.
    """

    def __init__(self, runner: StageRunner, where: str, send: Callable[[Reply], Awaitable[None]]) -> None:
        self._runner = runner
        self._where = where
        self._send = send
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, call: Call) -> None:
        """Answer a call when those before it are done."""
        task = asyncio.create_task(self._answer(call, asyncio.get_running_loop().time() + call.timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Give up every call; the orchestrator knows that the stage ends."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, call: Call, deadline: float) -> None:
        try:
            reply = Reply(call.call_id, await self._result(call, deadline))
        except OmniError as error:
            reply = Reply(call.call_id, None, Fault.of(error, where=self._where))
        except Exception as error:  # a runner or its engine may raise anything; the operator is told and requests go on
            logger.exception("%s: %s failed", self._where, call.method)
            reply = Reply(call.call_id, None, Fault.of(error, where=self._where))
        await self._send(reply)

    async def _result(self, call: Call, deadline: float) -> Any:
        try:
            # The lock wakes its waiters in the order in which they came.
            async with asyncio.timeout_at(deadline), self._turn:
                logger.info("%s: %s", self._where, call.method)
                result = await self._runner.call(call.method, call.arguments)
        except TimeoutError:
            hint = "allow it more time, or see what the stage waits for"
            raise DeadlineError(f"{call.method} took longer than {call.timeout_s:g} s", hint=hint) from None
        msgspec.msgpack.encode(result)  # what cannot be sent is this call's failure, not the channel's
        return result
