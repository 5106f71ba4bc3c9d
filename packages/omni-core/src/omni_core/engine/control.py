"""Calls of operators to stages, the orchestrator's end: to every replica, and each ends in time whatever the stage does.

`call_desk` is the stage host's end. What a stage was told to be is remembered, for replicas that are started again: nobody
should find one of them at work that was told to wait, or with other weights than its neighbours.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from omni_core.engine.messages import Call, Reply
from omni_core.engine.orders import HOLDS, Orders, way_back
from omni_core.engine.replicas import ReplicaPool
from omni_core.engine.stage_process import StageProcess, StageState
from omni_core.errors import DeadlineError, NotFoundError, OmniError, RequestError, ServiceError

logger = logging.getLogger(__name__)

BRING_BACK_TIMEOUT_S = 60.0
WAKE_TIMEOUT_S = 600.0
"""For a stage that comes with a worker and is to be awake: it may have to read its weights again."""
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
        self.resumed_at = 0.0
        """Loop time at which a stage was last told to go on: what it is to be blamed for begins then."""
        self._pools = pools
        self._orders: defaultdict[int, Orders] = defaultdict(Orders)
        self._decided: set[int] = set()
        """Stages of which operators have said to this server that they hold their requests back, or that they do not."""
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
            if replica.state not in (StageState.READY, StageState.LEAVING):
                raise replica.dead_error()
        _check_arguments(method, arguments)
        processes = [replica.process for replica in members]
        holds, was_paused = HOLDS.get(method), stage_id in self.paused
        if holds:
            self._note_pause(stage_id, is_paused=True)
        try:
            answers = await asyncio.gather(
                *(self._call(process, method, arguments, timeout_s) for process in processes), return_exceptions=True
            )
        finally:
            if holds is not None:  # one that is told to go on holds its requests back until it has answered
                self._note_pause(stage_id, holds)
        error = next((answer for answer in answers if isinstance(answer, BaseException)), None)
        self._remember(stage_id, method, arguments, error)
        if error is not None:
            if holds is not None:
                self._note_pause(stage_id, was_paused)
            raise error
        return list(answers)

    def _remember(self, stage_id: int, method: str, arguments: Mapping[str, Any], error: BaseException | None) -> None:
        self._orders[stage_id].note(method, arguments, error)
        if error is None and method in HOLDS:
            self._decided.add(stage_id)

    def weights(self, stage_id: int) -> str:
        """Return whose weights a stage has, as `Orders.weights`."""
        return self._orders[stage_id].weights

    def take_over_weights(self, stage_id: int, weights: str) -> None:
        """Note whose weights a stage has that comes with a worker, from the time of an earlier head."""
        self._orders[stage_id].weights = weights

    def why_not_again(self, stage_id: int) -> str:
        """Return why no replica of a stage can be started again so that it is as it was; empty if it can."""
        return "its weights came from a trainer and went with it" if self.weights(stage_id) else ""

    async def bring_back(self, process: StageProcess, before: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Have a replica be as its stage was told to be; it takes no requests yet.

        Args:
            process: One that was started again, or came with a worker.
            before: The lasting calls that it obeys already. The last word is that of this server's operators; where they
                have said nothing, the server was started again, and its stage is as this replica is.

        Raises:
            OmniError: It, or another replica that has to be as it is, cannot do as it is told.
        """
        stage_id = process.stage.stage_id
        if before and stage_id not in self._decided:
            await self._take_over(process, before)
        told = dict(self._orders[stage_id].told)
        if before and (method := way_back(before, told)):
            await self._call(process, method, {}, WAKE_TIMEOUT_S)
        for method, arguments in told.items():
            await self._call(process, method, arguments, BRING_BACK_TIMEOUT_S)
        if process.state is not StageState.READY:
            raise process.dead_error()  # it went with its last answer

    async def _take_over(self, process: StageProcess, before: Mapping[str, Mapping[str, Any]]) -> None:
        """Have a stage be as a replica is that obeys an earlier head."""
        stage_id = process.stage.stage_id
        for method, said in before.items():
            # Whatever was to happen to the requests of that time, those of today keep their place.
            arguments = {"mode": "keep"} if method == "pause" else said
            # Those that become ready from now on hear of it by themselves.
            self._remember(stage_id, method, arguments, None)
            others = [other for other in self._pools[stage_id].ready if other is not process]
            try:
                await asyncio.gather(*(self._call(other, method, arguments, BRING_BACK_TIMEOUT_S) for other in others))
            except OmniError:
                self._decided.discard(stage_id)  # the replica that comes back tries it again
                raise
        if self._orders[stage_id].holds:
            self._note_pause(stage_id, is_paused=True)
            what = "asleep" if "sleep" in before else "paused"
            logger.warning("stage %s is %s since the time of an earlier head; resume or wake it up", process.name, what)

    def _note_pause(self, stage_id: int, is_paused: bool) -> None:
        if stage_id in self.paused and not is_paused:
            self.resumed_at = asyncio.get_running_loop().time()
        (self.paused.add if is_paused else self.paused.discard)(stage_id)

    async def _call(self, process: StageProcess, method: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        if process.state is not StageState.READY:
            raise process.dead_error()  # what is posted to it is dropped, and its death is over
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
