"""What a worker remembers of the calls that pass it."""

from __future__ import annotations

import pytest

from omni_core.engine.messages import Call, Fault, Reply
from omni_core.engine.remote.memory import Memory

PAUSE = Call(1, "pause", {"mode": "keep"}, 60.0)


def test_what_a_stage_has_done_is_remembered_and_what_it_refused_is_not() -> None:
    memory, head = Memory(), object()
    for number, method in enumerate(("pause", "sleep")):
        memory.ask(head, Call(number, method, {}, 60.0))

    memory.answer(head, Reply(0, True))
    memory.answer(head, Reply(1, None, Fault("UnsupportedError", "a CPU does not sleep")))
    memory.answer(head, Reply(2, True))  # nobody asked

    assert memory.orders.told == {"pause": {}}
    assert not memory.is_stale


@pytest.mark.parametrize(("reply", "is_stale"), [(Reply(1, True), True), (Reply(1, None, Fault("ServiceError", "no")), False)])
def test_call_of_an_earlier_head_that_ends_now_is_news_for_the_next_one(reply: Reply, is_stale: bool) -> None:
    memory = Memory()
    memory.ask("an earlier head", PAUSE)

    memory.answer("the present head", reply)

    assert memory.is_stale == is_stale
