"""The Live API: whatever happens, each server event is one that the official SDK's own types accept."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from omni_duplex.errors import DuplexError
from omni_duplex.model import AudioOut, Capabilities, Fence, SessionConfig, TextOut, TurnDetection, TurnEnd
from omni_duplex.protocol import live
from omni_duplex.protocol.live import LiveDialect
from omni_duplex.testing import LoudEar, ScriptedModel, ScriptedTurnModel, unknown_fields

sdk = pytest.importorskip("openai.types.live.server_event", reason="the SDK is in the environment of the engine tests")

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

TURNS = Capabilities(turn_policy="commit", text_input=True, voices=("ada", "bob"))
BASE = SessionConfig(turn_detection=TurnDetection())


def check(events: list[dict[str, Any]]) -> None:
    """Hold events against the SDK's union, no field more than it knows."""
    adapter: TypeAdapter[Any] = TypeAdapter(sdk.ServerEvent)
    for event in events:
        parsed = adapter.validate_python(event, strict=True)
        # Each event has its number, also the one kind whose type does not list it.
        allowed = {".event_id"} if event["type"] == "session.output_audio.delta" else set()
        unknown = unknown_fields(parsed) - allowed
        assert not unknown, f"{event['type']} has fields that the SDK does not know: {unknown}"


def sound(loud: bool, samples: int = 2400) -> str:
    return base64.b64encode(np.full(samples, 9000 if loud else 0, "<i2").tobytes()).decode()


def spoken(fence: Fence) -> list[Any]:
    return [TextOut("good day", fence), AudioOut(np.full(2400, 0.25, np.float32), 24_000, fence), TurnEnd(fence)]


async def started(talk: Callable[..., Any], model: Any, **session: Any) -> Any:
    """Begin a session as the server does: the first message describes it, and is handed on when it is open."""
    message = {"type": "session.start", "event_id": "first", "session": {"model": "tiny", **session}}
    dialect = LiveDialect()
    config = dialect.start(message, BASE, model.capabilities(1))
    client = await talk(model, ear=LoudEar.maker(), dialect=dialect, config=config)
    await client.actor.receive(message)
    (event,) = await client.until("session.started")
    assert event["client_event_id"] == "first"
    return client


async def test_a_conversation_is_valid_throughout(talk: Callable[..., Any]) -> None:
    client = await started(talk, ScriptedTurnModel([spoken], TURNS))
    await client.send("session.input_audio.append", audio=sound(True))
    await client.send("session.input_audio.append", audio=sound(False))
    events = await client.until("session.usage.updated")
    await client.send("session.close", event_id="bye")
    events += await client.until("session.closed")

    check(client.events)
    assert [event["type"].removeprefix("session.") for event in events] == [
        "output_transcript.delta",
        "output_audio.delta",
        "usage.updated",
        "closed",
    ]
    assert events[0]["start_ms"] == 200, "the answer follows what was heard until then"
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(events[1]["delta"]), "<i2"), np.full(2400, 8192))
    assert events[3]["reason"] == "close_requested"
    assert events[3]["client_event_id"] == "bye"
    assert events[3]["usage"] == {"seconds": 1.0}


async def test_each_command_is_acknowledged_in_order(talk: Callable[..., Any]) -> None:
    client = await started(talk, ScriptedTurnModel([spoken], TURNS), instructions="be brief")
    await client.send("session.input_audio.mute", event_id="m")
    await client.send("session.input_audio.unmute", event_id="u")
    await client.send("session.instructions.append", content="be kind", delegation_id=None, event_id="i")
    await client.send("session.thinking.append", content="it rains", delegation_id=None, event_id="t")
    await client.send("session.commentary.append", content="it stopped", delegation_id=None, event_id="c")
    await client.send("session.update", session={"delegation": {"type": "client"}, "triggers": []}, event_id="s")

    events = await client.until("session.usage.updated")

    check(client.events)
    acks = [
        (event["type"].removeprefix("session."), event["client_event_id"]) for event in events if "client_event_id" in event
    ]
    assert acks == [
        ("input_audio.muted", "m"),
        ("input_audio.unmuted", "u"),
        ("instructions.appended", "i"),
        ("thinking.appended", "t"),
        ("commentary.appended", "c"),
        ("updated", "s"),
    ]
    assert client.actor.session.config.instructions == "be brief\n\nbe kind"
    history, options = client.actor._stream.asked[0]
    assert [message.content[0].text for message in history if message.content][-2:] == ["it rains", "it stopped"]
    assert options.instructions == "be brief\n\nbe kind"


async def test_instructions_do_not_grow_for_ever(talk: Callable[..., Any]) -> None:
    client = await started(talk, ScriptedTurnModel([spoken], TURNS), instructions="a" * live.MAX_INSTRUCTIONS)
    await client.send("session.instructions.append", content="more", event_id="i")

    error = (await client.until("error"))[-1]

    assert (error["error"]["code"], error["client_event_id"]) == ("instructions_too_long", "i")
    assert len(client.actor.session.config.instructions) == live.MAX_INSTRUCTIONS


async def test_a_muted_microphone_is_silence_and_not_a_gap(talk: Callable[..., Any]) -> None:
    client = await started(talk, ScriptedModel(capabilities=Capabilities()))
    await client.send("session.input_audio.mute")
    await client.send("session.input_audio.append", audio=sound(True))
    await client.send("session.input_audio.unmute")
    await client.send("session.input_audio.append", audio=sound(True))
    await client.until("session.input_audio.unmuted")
    await client.actor.idle()

    assert client.actor.session.heard == 4800
    assert client.actor.dialect._ms() == 200


async def test_an_interruption_tells_the_client_to_drop_what_it_has(talk: Callable[..., Any]) -> None:
    model = ScriptedTurnModel([spoken, spoken], TURNS)
    client = await started(talk, model)
    model.hold()
    for loud in (True, False):
        await client.send("session.input_audio.append", audio=sound(loud))
    model.give(2)
    await client.until("session.output_audio.delta")
    await client.send("session.input_audio.append", audio=sound(True))

    events = await client.until("session.usage.updated")
    model.give(100)

    check(client.events)
    assert [event["code"] for event in events if event["type"] == "info"] == ["output_interrupted"]


async def test_history_comes_before_the_first_word(talk: Callable[..., Any]) -> None:
    history = [
        {"role": "developer", "content": [{"type": "input_text", "text": "you sell tea"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}], "type": "message"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "welcome"}]},
    ]
    client = await started(talk, ScriptedTurnModel([spoken], TURNS), input=history)
    await client.send("session.input_audio.mute")
    await client.until("session.input_audio.muted")

    assert [(item.role, item.content[0].text) for item in client.actor.session.items] == [
        ("system", "you sell tea"),
        ("user", "hello"),
        ("assistant", "welcome"),
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("session.start", {"session": {"model": "tiny"}}, "session_already_started"),
        ("response.create", {}, "unsupported_event"),
        ("decision.create", {}, "unsupported_event"),
        ("input_audio_buffer.append", {"audio": ""}, "unknown_event"),
        ("session.input_audio.append", {"audio": "A"}, "bad_audio"),
        ("session.input_audio.append", {}, "invalid_value"),
        ("session.thinking.append", {"content": "x" * 8001, "delegation_id": None}, "invalid_value"),
        ("session.thinking.append", {"content": "x", "delegation_id": "d"}, "unsupported_parameter"),
        ("session.update", {"session": {"instructions": "x"}}, "unknown_parameter"),
        ("session.update", {"session": {"delegation": {"type": "responses"}}}, "unsupported_parameter"),
    ],
)
async def test_what_cannot_be_done_is_an_error_that_names_its_command(
    talk: Callable[..., Any], kind: str, fields: dict[str, Any], code: str
) -> None:
    client = await started(talk, ScriptedTurnModel([spoken], TURNS))

    await client.send(kind, event_id="mine", **fields)

    (event,) = await client.until("error")
    check([event])
    assert (event["error"]["code"], event["error"]["client_event_id"]) == (code, "mine")


@pytest.mark.parametrize(
    ("session", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"model": "m", "audio": {"format": {"type": "audio/pcm", "rate": 48_000}}}, "unsupported_audio_format"),
        ({"model": "m", "audio": {"output": {"voice": "eve"}}}, "unknown_voice"),
        ({"model": "m", "store": True}, "unsupported_parameter"),
        ({"model": "m", "client": {"data_channel": {}}}, "unsupported_parameter"),
        ({"model": "m", "triggers": [{}]}, "unsupported_parameter"),
        ({"model": "m", "input": [{"role": "user", "content": []}]}, "invalid_value"),
        ({"model": "m", "input": [{"role": "tool", "content": []}]}, "invalid_value"),
        ({"model": "m", "input": [{}] * 129}, "invalid_value"),
        ({"model": "m", "invented": 1}, "unknown_parameter"),
    ],
)
def test_a_session_that_cannot_be_is_refused_before_it_is_opened(session: dict[str, Any], code: str) -> None:
    with pytest.raises(DuplexError) as refused:
        LiveDialect().start({"type": "session.start", "session": session}, BASE, TURNS)
    assert refused.value.code == code


def test_a_turn_model_needs_somebody_who_finds_the_end_of_a_turn() -> None:
    message = {"type": "session.start", "session": {"model": "m"}}
    with pytest.raises(DuplexError, match="omni vad"):
        LiveDialect().start(message, replace(BASE, turn_detection=None), TURNS)


@pytest.mark.parametrize(
    ("form", "rate"), [("audio/pcm", 16_000), ("audio/pcm", 24_000), ("audio/pcmu", 8_000), ("audio/pcma", 8_000)]
)
async def test_each_format_holds_both_ways(talk: Callable[..., Any], form: str, rate: int) -> None:
    model = ScriptedTurnModel([spoken], TURNS)
    client = await started(talk, model, audio={"format": {"type": form, "rate": rate}, "output": {"voice": "BOB"}})
    law = form != "audio/pcm"
    for value in (9000, 0, 0, 0):  # the resampler lets a little of the sound into the first silence
        pcm = np.full(rate // 10, value, "<i2")
        quiet = 0xFF if form == "audio/pcmu" else 0xD5
        data = bytes([0x80 if value else quiet] * len(pcm)) if law else pcm.tobytes()
        await client.send("session.input_audio.append", audio=base64.b64encode(data).decode())

    events = await client.until("session.usage.updated")

    check(client.events)
    assert client.events[0]["session"]["audio"] == {"format": {"type": form, "rate": rate}, "output": {"voice": "bob"}}
    made = b"".join(base64.b64decode(event["delta"]) for event in events if event["type"] == "session.output_audio.delta")
    assert len(made) == rate // 10 * (1 if law else 2)
