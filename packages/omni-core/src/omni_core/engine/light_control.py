"""What operators may ask of a light stage: hold its requests back, give up its device's memory, read its weights again.

It lives on the stage host's loop, beside the `LightRunner` whose worker thread does the work between two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any, Protocol

from omni_core.errors import OmniError, RequestError, ServiceError, UnsupportedError
from omni_core.runner import LightModel
from omni_core.stage import ResolvedStage


class Hold(IntEnum):
    """Which requests get no further step."""

    NOTHING = 0
    NEW = 1
    """Those that had none yet."""
    ALL = 2


class Held(Protocol):
    """What is needed of the runner."""

    stage: ResolvedStage

    @property
    def model(self) -> LightModel:
        """The loaded model."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether a request has a state."""
        ...

    def in_worker(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Run a function behind the step that the worker computes now."""
        ...

    def end_all(self, error: OmniError) -> None:
        """Fail every request."""
        ...

    def look(self) -> None:
        """Look for chunks that can be computed."""
        ...


class LightControl:
    """Answer calls for a light stage.

    Args:
        runner: The stage's runner.
    """

    def __init__(self, runner: Held) -> None:
        self.hold = Hold.NOTHING
        self.is_asleep = False
        self._runner = runner
        self._where = f"stage {runner.stage.name}"
        self._ended = asyncio.Event()

    def allows(self, *, begun: bool) -> bool:
        """Tell whether a request may have a step."""
        return self.hold is Hold.NOTHING or (self.hold is Hold.NEW and begun)

    def note_end(self) -> None:
        """Note that a request has ended."""
        self._ended.set()

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Answer a call.

        Raises:
            UnsupportedError: A light stage does not do that, or this one cannot.
            RequestError: The arguments cannot be used, or not now.
        """
        match method:
            case "pause":
                return await self._pause(str(arguments.get("mode", "keep")))
            case "resume":
                return self._resume()
            case "is_paused":
                return self.hold is not Hold.NOTHING
            case "sleep":
                return await self._sleep()
            case "wake_up":
                return await self._wake_up()
            case "reload_weights":
                return await self._reload_weights()
        raise UnsupportedError(f"a stage without an LLM cannot {method}", where=self._where)

    async def _pause(self, mode: str) -> bool:
        before = self.hold
        self.hold = Hold.NEW if mode == "wait" and before is not Hold.ALL else Hold.ALL
        try:
            await self._runner.in_worker(_nothing)
            if mode == "wait":
                while before is not Hold.ALL and self._runner.has_begun:
                    self._ended.clear()
                    await self._ended.wait()
        except BaseException:  # cancelled or failed, batches go on; raised again
            self._release(before)
            raise
        if mode == "abort":
            hint = "send it again when the stage is resumed"
            self._runner.end_all(
                ServiceError("the stage was paused and its requests were aborted", where=self._where, hint=hint)
            )
        self.hold = Hold.ALL
        return before is not Hold.ALL

    def _resume(self) -> bool:
        if self.is_asleep:
            raise RequestError("the stage is asleep", where=self._where, hint="wake it up")
        return self._release(Hold.NOTHING)

    def _release(self, hold: Hold) -> bool:
        before, self.hold = self.hold, hold
        self._runner.look()
        return before is not hold

    async def _sleep(self) -> bool:
        if self._runner.stage.platform == "cpu":
            raise UnsupportedError("on a CPU the weights are in the host's memory already", where=self._where)
        if self.is_asleep:
            return False
        before, self.hold = self.hold, Hold.ALL
        # A call whose time is over leaves it asleep: what the worker has begun it ends, and waking comes behind that.
        self.is_asleep = True
        try:
            await self._runner.in_worker(self._runner.model.sleep)
        except Exception:  # a model may raise anything; batches go on, and it is raised again
            self.is_asleep = False
            self._release(before)
            raise
        return True

    async def _wake_up(self) -> bool:
        if not self.is_asleep:
            return False
        await self._runner.in_worker(self._runner.model.wake)
        self.is_asleep = False
        self._release(Hold.NOTHING)
        return True

    async def _reload_weights(self) -> bool:
        if self.is_asleep:
            raise RequestError("the stage is asleep", where=self._where, hint="wake it up before its weights are read again")
        # The worker does one thing after the other, so no step sees half of the new weights.
        await self._runner.in_worker(lambda: self._runner.model.reload(self._runner.stage))
        return True


def _nothing() -> None:
    return
