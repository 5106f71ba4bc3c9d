"""Calls of operators to stages, the orchestrator's end: to every replica, and each ends in time whatever the stage does.

`call_desk` is the stage host's end. What a stage was told to be is remembered, for replicas that are started again: nobody
should find one of them at work that was told to wait, or with other weights than its neighbours.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from omni_core.engine.messages import Call, Reply
from omni_core.engine.replicas import ReplicaPool
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.errors import DeadlineError, NotFoundError, OmniError, RequestError, ServiceError

_HOLDS = {"pause": True, "sleep": True, "resume": False, "wake_up": False}
_LASTING = frozenset({"pause", "sleep", "update_weight_version"})
"""Calls that a replica which is started again has to be told as well."""
_ENDS = {"resume": ("pause",), "wake_up": ("pause", "sleep")}
"""Which of them a call ends."""
_TRAINS = frozenset({"start_weight_update", "update_weights", "finish_weight_update"})
BRING_BACK_TIMEOUT_S = 60.0
GRACE_S = 1.0
"""How much longer the orchestrator waits than the host, whose own error says more."""


class Control:
    """The orchestrator's end. Only its loop touches it.

    Args:
        pools: The stages' replicas, by stage id.
    """

    def __init__(self, pools: Mapping[int, ReplicaPool]) -> None:
        self.paused: set[int] = set()
        """Stages that were told to hold their requests back, for which nobody is to blame."""
        self._pools = pools
        self._told: dict[int, dict[str, Mapping[str, Any]]] = {}
        """The lasting calls that each stage was told last, in their order."""
        self._trained: set[int] = set()
        """Stages with weights, whole or in part, that came from a trainer."""
        # A stage of a worker may still answer the head before this one, which must not be taken for an answer to this one.
        self._numbers = itertools.count(secrets.randbits(60))
        self._waiting: dict[int, tuple[StageProcess, asyncio.Future[Any]]] = {}

    async def call(self, stage_id: int, method: str, arguments: Mapping[str, Any], timeout_s: float) -> list[Any]:
        """Call every replica of a stage at once and return what each answered, in their order.

        Raises:
            NotFoundError: There is no such stage.
            StageDeadError: A replica is not there, or went while it was called.
            DeadlineError: A replica did not answer in time.
            OmniError: What the first replica that failed answered; the others have ended, too.
        """
        if (pool := self._pools.get(stage_id)) is None:
            known = ", ".join(map(str, sorted(self._pools)))
            raise NotFoundError(f"there is no stage {stage_id}", param="stage_ids", hint=f"the stages are {known}")
        members = pool.members
        for replica in members:
            if replica.state is not StageState.READY:
                raise replica.dead_error()
        _check_arguments(method, arguments)
        processes = [replica.process for replica in members]
        was_paused = stage_id in self.paused
        self._note_pause(stage_id, _HOLDS.get(method, was_paused))
        answers = await asyncio.gather(
            *(self._call(process, method, arguments, timeout_s) for process in processes), return_exceptions=True
        )
        error = next((answer for answer in answers if isinstance(answer, BaseException)), None)
        self._remember(stage_id, method, arguments, error)
        if error is not None:
            self._note_pause(stage_id, was_paused)
            raise error
        return list(answers)

    def _remember(self, stage_id: int, method: str, arguments: Mapping[str, Any], error: BaseException | None) -> None:
        # An update that was refused has changed nothing; one that failed may have changed anything.
        if method in _TRAINS and not isinstance(error, RequestError):
            self._trained.add(stage_id)
        if error is not None:
            return
        told = self._told.setdefault(stage_id, {})
        for ended in _ENDS.get(method, ()):
            told.pop(ended, None)
        if method in _LASTING:
            told.pop(method, None)
            told[method] = dict(arguments)
        if method == "reload_weights":
            self._trained.discard(stage_id)

    def why_not_again(self, stage_id: int) -> str:
        """Return why no replica of a stage can be started again so that it is as it was; empty if it can."""
        return "its weights came from a trainer and went with it" if stage_id in self._trained else ""

    async def bring_back(self, process: StageProcess) -> None:
        """Tell a replica that was started again what its stage was told before; it takes no requests yet.

        Raises:
            OmniError: It cannot do as it is told.
        """
        for method, arguments in list(self._told.get(process.stage.stage_id, {}).items()):
            await self._call(process, method, arguments, BRING_BACK_TIMEOUT_S)

    def _note_pause(self, stage_id: int, is_paused: bool) -> None:
        (self.paused.add if is_paused else self.paused.discard)(stage_id)

    async def _call(self, process: StageProcess, method: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (process, answer)
        try:
            process.post(Call(number, method, dict(arguments), timeout_s))
            async with asyncio.timeout(timeout_s + GRACE_S):
                return await answer
        except TimeoutError:
            raise DeadlineError(f"{method} had no answer within {timeout_s:g} s", where=f"stage {process.name}") from None
        finally:
            del self._waiting[number]

    def take(self, process: StageProcess, reply: Reply) -> None:
        """Take a reply; one that nobody waits for any more is dropped."""
        asked, answer = self._waiting.get(reply.call_id, (None, None))
        if asked is not process or answer is None or answer.done():
            return
        if reply.fault is None:
            answer.set_result(reply.result)
        else:
            answer.set_exception(reply.fault.error())

    def note_death(self, process: StageProcess) -> None:
        """Fail the calls to a process that is gone."""
        self._fail(process.dead_error(), process)

    def close(self) -> None:
        """Fail every call: the server stops."""
        self._fail(ServiceError("the server stopped before the stage answered"))

    def _fail(self, error: OmniError, process: StageProcess | None = None) -> None:
        for asked, answer in self._waiting.values():
            if process in (None, asked) and not answer.done():
                answer.set_exception(error)


def _check_arguments(method: str, arguments: Mapping[str, Any]) -> None:
    try:
        msgspec.msgpack.encode(dict(arguments))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(f"the arguments of {method} cannot be sent: {error}", hint="send plain values") from error
