"""What a worker's stage was told by operators, read from the messages that pass: the next head has to know it."""

from __future__ import annotations

from typing import Any

from omni_core.engine.messages import Call, Reply
from omni_core.engine.orders import Orders


class Memory:
    """The orders of one replica's present process."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.is_stale = False
        """Whether a call of an earlier head has changed the orders since they were last registered."""
        self._calls: dict[int, tuple[Any, Call]] = {}

    def ask(self, head: object, call: Call) -> None:
        """Note a call on its way to the stage; `head` is the connection that it came by."""
        self._calls[call.call_id] = (head, call)

    def answer(self, head: object, reply: Reply) -> None:
        """Note the stage's answer; `head` is the present connection."""
        asker, call = self._calls.pop(reply.call_id, (None, None))
        if call is None:
            return
        before = (dict(self.orders.told), self.orders.weights)
        self.orders.note(call.method, call.arguments, None if reply.fault is None else reply.fault.error())
        if asker is not head and before != (self.orders.told, self.orders.weights):
            self.is_stale = True
