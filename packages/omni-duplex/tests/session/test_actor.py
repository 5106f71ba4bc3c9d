"""An actor with scripted models: what the client reads, and what is left at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omni_duplex.errors import DuplexError
from omni_duplex.manager import Attachment, SessionManager
from omni_duplex.model import (
    AudioIn,
    AudioOut,
    DuplexStream,
    Fence,
    Listen,
    Output,
    SessionConfig,
    TextOut,
    TurnDetection,
    TurnEnd,
)
from omni_duplex.session import events as ev
from omni_duplex.session.actor import SessionActor
from omni_duplex.session.outbox import MAX_AUDIO_S
from omni_duplex.testing import LoudEar, PlainDialect, ScriptedModel, ScriptedTurnModel, VirtualClock

pytestmark = pytest.mark.anyio

UNIT = 1920
Manage = Callable[..., SessionManager]


def tone(fence: Fence, seconds: float = 0.08) -> AudioOut:
    return AudioOut(np.full(int(24_000 * seconds), 0.5, np.float32), 24_000, fence)


def answer(text: str = "well ") -> Callable[[Fence], list[Any]]:
    return lambda fence: [TextOut(text, fence), tone(fence), tone(fence), TurnEnd(fence)]


async def say(actor: SessionActor, command: ev.Command) -> None:
    await actor.receive({"command": command})


async def begin(manager: SessionManager, dialect: PlainDialect | None = None, **config: Any) -> tuple[SessionActor, Attachment]:
    actor = await manager.open(dialect or PlainDialect(), SessionConfig(**config))
    return actor, manager.attach(actor)


def types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_turn_is_answered_in_the_order_of_the_realtime_api(manage: Manage, until: Any) -> None:
    actor, _ = await begin(manage(ScriptedTurnModel([answer()])), turn_detection=None)
    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    await say(actor, ev.Commit())
    await say(actor, ev.CreateResponse())

    events = await until(actor, "response.done")

    assert types(events) == [
        "session.created",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert events[-1]["response"]["status"] == "completed"
    assert len({event["event_id"] for event in events}) == len(events)


async def test_a_unit_model_hears_every_sample_in_units(manage: Manage, until: Any) -> None:
    model = ScriptedModel([lambda fence: [Listen(fence)]] * 3)
    actor, _ = await begin(manage(model))
    ramp = np.arange(3 * UNIT, dtype=np.float32)

    for piece in np.split(ramp, [7, 1900, 1921, 5000]):
        await say(actor, ev.Append(piece))
    events = [await until(actor, "response.listen") for _ in range(3)]

    assert len(events) == 3
    stream: Any = model.streams[0]
    np.testing.assert_array_equal(np.concatenate([unit.pcm for unit in stream.heard]), ramp)
    assert {len(unit.pcm) for unit in stream.heard} == {UNIT}


async def test_a_unit_model_hears_silence_while_the_client_sends_nothing(
    manage: Manage, clock: VirtualClock, until: Any
) -> None:
    model = ScriptedModel([lambda fence: [Listen(fence)]] * 4)
    actor, _ = await begin(manage(model))
    await say(actor, ev.Append(np.ones(UNIT, np.float32)))
    await until(actor, "response.listen")

    for seconds in (0.24, 0.08, 0.08):
        clock.advance(seconds)
        await until(actor, "response.listen")

    stream: Any = model.streams[0]
    assert [float(unit.pcm.sum()) for unit in stream.heard[:2]] == [UNIT, 0.0]


@pytest.mark.parametrize("given", range(6))
async def test_nothing_of_an_answer_leaves_after_it_was_cancelled(manage: Manage, until: Any, given: int) -> None:
    """B28: cancel after any number of outputs; one terminal event, no delta after it, and the next answer comes."""
    model = ScriptedTurnModel([lambda fence: [TextOut("a ", fence)] + [tone(fence)] * 5 + [TurnEnd(fence)], answer("next ")])
    model.hold()
    actor, _ = await begin(manage(model), turn_detection=None)
    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    await say(actor, ev.Commit())
    await say(actor, ev.CreateResponse())
    events = await until(actor, "response.created")
    first = events[-1]["response"]["id"]
    model.give(given)
    while len(events) < 5 + given + 3 * bool(given):
        event = await actor.outbox.channel.get()
        assert isinstance(event, dict)
        events.append(event)

    await say(actor, ev.CancelResponse())
    events += await until(actor, "response.done")
    model.give(20)
    await say(actor, ev.CreateResponse())
    after = await until(actor, "response.done")

    done = events[-1]["response"]
    assert (done["id"], done["status"], done["status_details"]["reason"]) == (first, "cancelled", "client_cancelled")
    assert not [event for event in after if event.get("response_id") == first]
    assert after[-1]["response"]["status"] == "completed"
    await say(actor, ev.CancelResponse())
    error = (await until(actor, "error"))[-1]["error"]
    assert error["code"] == "response_cancel_not_active"


async def test_speech_interrupts_the_answer_and_becomes_the_next_turn(manage: Manage, clock: VirtualClock, until: Any) -> None:
    model = ScriptedTurnModel(
        [lambda fence: [*([TextOut("one ", fence), tone(fence, 1.0)] * 9), TurnEnd(fence)], answer("two ")]
    )
    model.hold()
    model.give(18)  # all but the end
    actor, _ = await begin(manage(model, ear=LoudEar.maker()))
    loud, quiet = np.ones(UNIT, np.float32), np.zeros(UNIT, np.float32)
    await say(actor, ev.Append(loud))
    await say(actor, ev.Append(quiet))
    events = []
    while types(events).count("response.output_audio.delta") < 9:
        events += await until(actor, "response.output_audio.delta")
    clock.advance(2.5)

    await say(actor, ev.Append(loud))
    await say(actor, ev.Append(quiet))
    interrupted = await until(actor, "response.done")
    model.give(4)
    after = await until(actor, "response.done")

    assert interrupted[0]["type"] == "input_audio_buffer.speech_started"
    assert interrupted[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert after[-1]["response"]["status"] == "completed"
    stream: Any = model.streams[0]
    history = stream.asked[1][0]
    assert [message.role for message in history] == ["user", "assistant", "user"]
    assert history[1].content[0].text == "one one one ", "2.5 s were heard, and words begin at 0, 1 and 2 s"
    assert history[2].content[0].audio is not None
    assert history[2].content[0].audio.max() == 1.0, "the interrupting speech is whole"


async def test_a_turn_that_ends_during_an_answer_is_answered_after_it(manage: Manage, until: Any) -> None:
    model = ScriptedTurnModel([answer("one "), answer("two ")])
    model.hold()
    actor, _ = await begin(manage(model, ear=LoudEar.maker()))
    actor.session.config = replace(
        actor.session.config, turn_detection=replace(actor.session.config.turn_detection, interrupt_response=False)
    )
    for _ in range(2):
        await say(actor, ev.Append(np.ones(UNIT, np.float32)))
        await say(actor, ev.Append(np.zeros(UNIT, np.float32)))

    model.give(20)
    first, second = await until(actor, "response.done"), await until(actor, "response.done")

    assert first[-1]["response"]["status"] == second[-1]["response"]["status"] == "completed"
    stream: Any = model.streams[0]
    assert len(stream.asked) == 2


async def test_a_failing_turn_costs_the_turn_and_not_the_session(manage: Manage, until: Any) -> None:
    def broken(fence: Fence) -> list[Any]:
        raise OSError("the model is broken")

    actor, _ = await begin(manage(ScriptedTurnModel([broken, answer()])), turn_detection=None)
    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    await say(actor, ev.Commit())
    await say(actor, ev.CreateResponse())
    failed = await until(actor, "response.done")
    await say(actor, ev.CreateResponse())
    answered = await until(actor, "response.done")

    assert failed[-1]["response"]["status_details"]["error"]["code"] == "internal_error"
    assert answered[-1]["response"]["status"] == "completed"


async def test_a_failing_unit_ends_the_session(manage: Manage, until: Any) -> None:
    def broken(fence: Fence) -> list[Any]:
        raise OSError("the model is broken")

    manager = manage(ScriptedModel([broken]))
    actor, _ = await begin(manager)

    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    events = await until(actor, "session.closed")

    assert "error" in types(events)
    assert await actor.outbox.channel.get() == (1011, "model_failed")
    await asyncio.wait_for(actor.freed.wait(), 10)
    assert manager.placement.held == 0


async def test_too_much_pending_audio_is_refused_and_the_rest_is_kept(manage: Manage, until: Any) -> None:
    manager = manage(ScriptedTurnModel([answer()]), max_pending_input_bytes_per_session=4 * UNIT)
    actor, _ = await begin(manager, turn_detection=None)

    for _ in range(3):
        await say(actor, ev.Append(np.zeros(UNIT // 2, np.float32)))
    error = (await until(actor, "error"))[-1]["error"]
    await say(actor, ev.Commit())
    committed = await until(actor, "conversation.item.done")

    assert (error["code"], error["type"]) == ("input_backpressure", "rate_limit_error")
    assert committed[0]["type"] == "input_audio_buffer.committed"
    assert actor.session.pending_bytes == 0


async def test_a_slow_reader_loses_its_session_and_memory_stays_bounded(manage: Manage) -> None:
    count = int(MAX_AUDIO_S) + 5
    manager = manage(ScriptedTurnModel([lambda fence: [tone(fence, 1.0)] * count]))
    actor, _ = await begin(manager, turn_detection=None)
    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    await say(actor, ev.Commit())

    await say(actor, ev.CreateResponse())
    await asyncio.wait_for(actor.freed.wait(), 10)

    assert await actor.outbox.channel.get() == (4003, "slow_consumer")
    assert actor.outbox.channel.nbytes == 0


async def test_a_session_in_which_nothing_happens_expires(manage: Manage, clock: VirtualClock, until: Any) -> None:
    actor, _ = await begin(manage(ScriptedTurnModel(), idle_ttl_s=10.0), turn_detection=None)
    await until(actor, "session.created")
    clock.advance(6)
    await say(actor, ev.Touch())
    await until(actor, "session.heartbeat_ack")
    clock.advance(6)
    await actor.idle()
    assert actor.session.life == "attached"

    clock.advance(6)
    events = await until(actor, "session.expired")

    assert types(events) == ["session.expired"]
    assert await actor.outbox.channel.get() == (4002, "expired")


@pytest.mark.parametrize("cut", range(1, 14))
async def test_a_client_that_comes_back_misses_nothing(manage: Manage, until: Any, cut: int) -> None:
    """Resume at every event index: what both sockets read together is what one undisturbed socket reads."""

    async def run(at: int | None) -> list[dict[str, Any]]:
        model = ScriptedTurnModel([answer()])
        model.hold()
        manager = manage(model)
        actor, attachment = await begin(manager, PlainDialect(resumable=True), turn_detection=None)
        await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
        await say(actor, ev.Commit())
        await say(actor, ev.CreateResponse())
        model.give(20)
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "response.done":
            if len(events) == at:
                manager.detach(attachment)
                attachment = manager.resume(actor.session.id, attachment.token, len(events))
                assert (await actor.outbox.channel.get())["type"] == "session.resumed"  # type: ignore[call-overload]
                at = None
            event = await actor.outbox.channel.get()
            assert isinstance(event, dict)
            events.append(event)
        return events

    whole, resumed = await run(None), await run(cut)

    assert types(resumed) == types(whole)
    assert [event["server_event_seq"] for event in resumed[1:]] == list(range(2, len(whole) + 1))
    sound = [
        np.concatenate([e["delta"].pcm for e in run if e["type"] == "response.output_audio.delta"]) for run in (whole, resumed)
    ]
    np.testing.assert_array_equal(*sound)


async def test_a_client_that_comes_back_gets_more_than_may_wait_for_one_that_reads(manage: Manage, until: Any) -> None:
    """The journal holds more than 30 s of audio; what it replays is not what makes a client slow."""
    count = int(MAX_AUDIO_S) + 10
    model = ScriptedTurnModel([lambda fence: [*([tone(fence, 1.0)] * count), TurnEnd(fence)]])
    model.hold()
    manager = manage(model)
    actor, attachment = await begin(manager, PlainDialect(resumable=True), turn_detection=None)
    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    await say(actor, ev.Commit())
    await say(actor, ev.CreateResponse())
    begun = await until(actor, "response.created")
    manager.detach(attachment)
    model.give(count)
    while actor.outbox.seq < len(begun) + 3 + count:  # the item, its place in the conversation and its part come first
        await asyncio.sleep(0)

    manager.resume(actor.session.id, attachment.token, len(begun))
    model.give()  # what comes before the client has read any of it
    events = await until(actor, "response.done")

    assert types(events).count("response.output_audio.delta") == count


async def test_a_whole_answer_may_come_at_once(manage: Manage, until: Any) -> None:
    manager = manage(ScriptedTurnModel([lambda fence: [tone(fence, 2 * MAX_AUDIO_S), TurnEnd(fence)]]))
    actor, _ = await begin(manager, turn_detection=None)
    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    await say(actor, ev.Commit())

    await say(actor, ev.CreateResponse())
    events = await until(actor, "response.done")

    assert events[-1]["response"]["status"] == "completed"


async def test_an_answer_that_ends_without_saying_so_has_failed(manage: Manage, until: Any) -> None:
    manager = manage(ScriptedTurnModel([lambda fence: [tone(fence)], answer()]))
    actor, _ = await begin(manager, turn_detection=None)
    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    await say(actor, ev.Commit())

    await say(actor, ev.CreateResponse())
    first = await until(actor, "response.done")
    await say(actor, ev.CreateResponse())
    second = await until(actor, "response.done")

    assert [events[-1]["response"]["status"] for events in (first, second)] == ["failed", "completed"]
    assert "error" in types(first)


async def test_others_go_on_while_an_ear_hears_minutes(manage: Manage, until: Any) -> None:
    heard: list[int] = []

    class Counting(LoudEar):
        def push(self, pcm: Any) -> Any:
            heard.append(len(pcm))
            return super().push(pcm)

    actor, _ = await begin(manage(ScriptedTurnModel(), ear=lambda capabilities, config: Counting()))
    await until(actor, "session.created")

    await say(actor, ev.Append(np.zeros(60 * 24_000, np.float32)))
    turns = 0
    while sum(heard) < 60 * 24_000:
        await asyncio.sleep(0)
        turns += 1

    assert turns >= 60
    assert max(heard) == 24_000


async def test_audio_that_was_dropped_is_not_heard_either(manage: Manage, until: Any) -> None:
    """Else speech would be found that nothing of is there, and every time after it would be wrong."""
    manager = manage(ScriptedTurnModel(), ear=LoudEar.maker(), max_pending_input_bytes_per_session=4 * UNIT)
    actor, _ = await begin(manager)

    await say(actor, ev.Append(np.ones(UNIT + 1, np.float32)))
    await say(actor, ev.Append(np.ones(UNIT, np.float32)))
    events = await until(actor, "input_audio_buffer.speech_started")

    assert types(events) == ["session.created", "error", "input_audio_buffer.speech_started"]
    assert events[-1]["audio_start_ms"] == 0


@pytest.mark.parametrize("ear", [None, LoudEar.maker()], ids=["deaf", "listening"])
async def test_turn_detection_is_refused_where_nothing_listens(manage: Manage, ear: Any) -> None:
    """Else a client would wait for ever for an answer to what it said."""
    actor, _ = await begin(manage(ScriptedTurnModel(), ear=ear), turn_detection=None)
    old, new = SessionConfig(turn_detection=None), SessionConfig(turn_detection=TurnDetection())

    if ear is None:
        with pytest.raises(DuplexError) as caught:
            actor.check_update(old, new)
        assert (caught.value.code, caught.value.param) == ("turn_detection_unavailable", "session.audio.input.turn_detection")
    else:
        actor.check_update(old, new)
    actor.check_update(new, old)


async def test_a_model_that_decides_by_itself_needs_nothing_that_listens(manage: Manage) -> None:
    actor, _ = await begin(manage(ScriptedModel()), turn_detection=None)

    actor.check_update(SessionConfig(turn_detection=None), SessionConfig(turn_detection=TurnDetection()))


async def test_a_unit_model_that_hangs_ends_its_session(manage: Manage, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(ScriptedModel):
        async def open(self, *args: Any) -> DuplexStream:
            stream = await super().open(*args)

            async def step(unit: AudioIn) -> AsyncIterator[Output]:
                await asyncio.Event().wait()
                yield Listen(unit.fence)

            stream.step = step  # type: ignore[method-assign]
            return stream

    monkeypatch.setattr("omni_duplex.session.drivers.UNIT_TIMEOUT_S", 0.05)
    manager = manage(Hanging())
    actor, _ = await begin(manager)

    await say(actor, ev.Append(np.zeros(UNIT, np.float32)))
    events = await until(actor, "session.closed")

    error = next(event for event in events if event["type"] == "error")["error"]
    assert (error["code"], error["type"]) == ("timeout", "server_error")
    await asyncio.wait_for(actor.freed.wait(), 10)
    assert manager.placement.held == 0
