"""The reducer under any order of events: the promises of a session hold whatever happens when."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omni_duplex.errors import DuplexError
from omni_duplex.model import AudioOut, Capabilities, Fence, Listen, SessionConfig, TextOut, ToolCall, TurnDetection, TurnEnd
from omni_duplex.session import events as ev
from omni_duplex.session.reducer import reduce
from omni_duplex.session.state import Item, Life, Limits, Part, Session, Speaking

RATE = 1000
LIMITS = Limits(max_pending_input_bytes_per_session=4000, max_pending_turns_per_session=2, idle_ttl_s=50.0)


class SessionMachine(RuleBasedStateMachine):
    """Send random events to a session and check what leaves it."""

    policy = "commit"

    def __init__(self) -> None:
        super().__init__()
        capabilities = Capabilities(turn_policy=self.policy, input_rate=RATE, output_rate=RATE, unit_ms=100)  # type: ignore[arg-type]
        config = SessionConfig(turn_detection=TurnDetection(idle_timeout_ms=4000))
        self.session = Session("sess_0123456789abcdef", capabilities, config, LIMITS, resumable=True)
        self.now = 0.0
        self.sent: list[dict[str, Any]] = []
        self.asked: list[Fence] = []
        self.fed = 0
        self.generation = 0
        self.freed = 0
        self.open_responses: set[str] = set()
        self.done: list[str] = []
        self.cancelled: set[str] = set()
        self.do(self.attached())

    def attached(self) -> ev.Attached:
        self.generation += 1
        return ev.Attached(self.generation)

    def do(self, event: ev.Event) -> None:
        for effect in reduce(self.session, event, self.now):
            if isinstance(effect, ev.Send):
                self.check(effect.event)
            elif isinstance(effect, ev.Respond):
                self.asked.append(effect.fence)
            elif isinstance(effect, ev.Feed):
                self.fed += effect.pcm.nbytes
            elif isinstance(effect, ev.Free):
                self.freed += 1

    def check(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert not any(other["type"] in ("session.closed", "session.expired") for other in self.sent), f"{kind} after the end"
        self.sent.append(event)
        if kind == "response.created":
            assert not self.open_responses, "two answers at once"
            self.open_responses.add(event["response"]["id"])
        elif kind == "response.done":
            self.open_responses.remove(event["response"]["id"])
            self.done.append(event["response"]["id"])
        elif kind.startswith("response.") and kind != "response.listen":
            assert event["response_id"] in self.open_responses, f"{kind} outside its answer"

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule(samples=st.integers(1, 400))
    def client_appends(self, samples: int) -> None:
        self.do(ev.Append(np.ones(samples, np.float32)))

    @rule()
    def client_commits(self) -> None:
        self.do(ev.Commit())

    @rule()
    def client_clears(self) -> None:
        self.do(ev.ClearInput())

    @rule(none=st.booleans())
    def client_wants_an_answer(self, none: bool) -> None:
        self.do(ev.CreateResponse({"conversation": "none"} if none else {}))

    @rule()
    def client_cancels(self) -> None:
        self.do(ev.CancelResponse())

    @rule()
    def client_clears_output(self) -> None:
        self.do(ev.ClearOutput())

    @rule(where=st.sampled_from([None, "root", "item_unknown"]))
    def client_writes(self, where: str | None) -> None:
        self.do(ev.CreateItem(Item("", "message", "user", content=[Part("input_text", "hello")]), where))

    @rule(pick=st.integers(0, 5))
    def client_deletes(self, pick: int) -> None:
        items = self.session.items
        self.do(ev.DeleteItem(items[pick % len(items)].id if items else "item_none"))

    @rule(pick=st.integers(0, 5), end=st.integers(0, 500))
    def client_truncates(self, pick: int, end: int) -> None:
        items = self.session.items
        self.do(ev.TruncateItem(items[pick % len(items)].id if items else "item_none", 0, end))

    @rule()
    def user_speaks(self) -> None:
        self.do(ev.SpeechStarted(self.session.ms(self.session.heard)))

    @rule()
    def user_falls_silent(self) -> None:
        self.do(ev.SpeechStopped(self.session.ms(self.session.heard)))

    @rule(old=st.booleans(), kind=st.sampled_from(["audio", "text", "tool", "listen", "end", "length"]))
    def model_gives(self, old: bool, kind: str) -> None:
        fence = self.session.fence
        if old:
            fence = (
                self.asked[0] if self.asked and self.asked[0] != fence else Fence(fence.session_id, fence.epoch - 1, fence.turn)
            )
        output: Any = {
            "audio": AudioOut(np.zeros(100, np.float32), RATE, fence),
            "text": TextOut("word ", fence),
            "tool": ToolCall("weather", "{}", "call_1", fence),
            "listen": Listen(fence),
            "end": TurnEnd(fence),
            "length": TurnEnd(fence, "length"),
        }[kind]
        before = len(self.sent)
        self.do(ev.Produced(output))
        if old:
            assert len(self.sent) == before, "something of a cancelled answer left"

    @rule(old=st.booleans())
    @precondition(lambda self: self.session.is_turn_model)
    def model_fails(self, old: bool) -> None:
        fence = self.session.fence
        self.do(ev.Failed(Fence(fence.session_id, fence.epoch - 1) if old else fence, DuplexError("engine_error", "broken")))

    @rule()
    @precondition(lambda self: self.fed > 0)
    def model_has_heard(self) -> None:
        self.do(ev.Consumed(self.fed))
        self.fed = 0

    @rule(seconds=st.floats(0.01, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for name, at in sorted(self.session.timers.items(), key=lambda timer: timer[1]):
            if at <= self.now:
                self.do(ev.Timer(name, at))

    @rule()
    def a_late_timer_rings(self) -> None:
        before = len(self.sent)
        self.do(ev.Timer("played", self.now - 1000))
        assert len(self.sent) == before

    @rule()
    def socket_breaks(self) -> None:
        self.do(ev.Detached(self.generation))

    @rule()
    @precondition(lambda self: not self.session.is_over)
    def socket_is_back(self) -> None:
        old = self.generation
        self.do(self.attached())
        self.do(ev.Detached(old))
        assert self.session.life is Life.ATTACHED, "the socket that was taken over does not count"

    @rule(how=st.sampled_from([ev.Close(), ev.ReplicaLost("stage 1 died"), ev.Overflowed()]))
    @precondition(lambda self: len(self.sent) > 40)
    def something_ends_it(self, how: ev.Event) -> None:
        self.do(how)

    @rule(ok=st.booleans())
    @precondition(lambda self: self.session.life is Life.CLOSING)
    def cleanup_is_tried(self, ok: bool) -> None:
        self.do(ev.Cleaned(ok))

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def speaking_fits_the_open_answer(self) -> None:
        if self.session.speaking is Speaking.RESPONDING:
            assert self.session.response is not None
            assert self.open_responses == {self.session.response.id}
        else:
            assert not self.open_responses
        assert len(set(self.done)) == len(self.done), "an answer is done once"

    @invariant()
    def what_is_reserved_is_bounded(self) -> None:
        session = self.session
        assert 0 <= session.pending_bytes <= LIMITS.max_pending_input_bytes_per_session
        assert 0 <= session.pending_turns <= LIMITS.max_pending_turns_per_session
        if session.is_turn_model:
            assert session.pending_bytes == sum(chunk.nbytes for chunk in session.buffer)
        if session.life is Life.CLOSED:
            assert session.pending_bytes == session.pending_turns == 0

    @invariant()
    def it_ends_once(self) -> None:
        ends = [event for event in self.sent if event["type"] in ("session.closed", "session.expired")]
        assert len(ends) <= 1
        assert self.freed == (1 if self.session.life is Life.CLOSED else 0)
        if self.session.life is Life.CLOSED:
            assert len(ends) == 1
            assert not self.session.timers

    @invariant()
    def ids_are_given_once(self) -> None:
        ids = [item.id for item in self.session.items]
        assert len(set(ids)) == len(ids)
        added = [event["item"]["id"] for event in self.sent if event["type"] == "conversation.item.added"]
        assert len(set(added)) == len(added)


class UnitSessionMachine(SessionMachine):
    """The same with a model that hears unit by unit."""

    policy = "model"


TestTurnSession = SessionMachine.TestCase
TestTurnSession.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestUnitSession = UnitSessionMachine.TestCase
TestUnitSession.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
