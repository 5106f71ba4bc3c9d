"""The realtime API: whatever happens, each server event is one that the official SDK's own types accept."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, ToolCall, TurnEnd
from omni_duplex.testing import ScriptedModel, ScriptedTurnModel, unknown_fields

openai_events = pytest.importorskip(
    "openai.types.realtime.realtime_server_event", reason="the SDK is in the environment of the engine tests"
)

pytestmark = [pytest.mark.engine, pytest.mark.anyio]


def check(events: list[dict[str, Any]]) -> None:
    """Hold events against the SDK's union, no field more than it knows."""
    adapter: TypeAdapter[Any] = TypeAdapter(openai_events.RealtimeServerEvent)
    for event in events:
        parsed = adapter.validate_python(event, strict=True)
        assert type(parsed).__name__ != "ConversationCreatedEvent", f"the SDK does not know {event['type']}"
        unknown = sorted(unknown_fields(parsed) - ALLOWED)
        assert not unknown, f"{event['type']} has fields that the SDK does not know: {unknown}"


ALLOWED = {
    # Fields that the API documents and sends, and that the SDK's model of the session does not list.
    ".session.object",
    ".session.id",
    ".session.expires_at",
}


def sound(samples: int = 4800) -> str:
    return base64.b64encode((np.sin(np.arange(samples) / 9) * 9000).astype("<i2").tobytes()).decode()


def spoken(fence: Fence) -> list[Any]:
    half = AudioOut(np.full(2400, 0.25, np.float32), 24_000, fence)
    usage = {"input_audio_tokens": 5, "output_audio_tokens": 3}
    return [TextOut("good ", fence), half, TextOut("day", fence), half, TurnEnd(fence, usage=usage)]


async def test_a_spoken_turn_is_valid_throughout(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel([spoken]))
    await client.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    await client.send("input_audio_buffer.append", audio=sound())
    await client.send("input_audio_buffer.commit")
    await client.send("response.create", response={"metadata": {"client_event_id": "abc"}})

    events = await client.until("response.done")

    check(events)
    done = events[-1]["response"]
    assert done["metadata"] == {"client_event_id": "abc"}
    assert done["usage"]["total_tokens"] == 8
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "good day"}]
    audio = b"".join(base64.b64decode(e["delta"]) for e in events if e["type"] == "response.output_audio.delta")
    np.testing.assert_array_equal(np.frombuffer(audio, "<i2"), np.full(4800, round(0.25 * 32767)))


async def test_a_function_is_called_and_its_result_goes_back(talk: Callable[..., Any]) -> None:
    model = ScriptedTurnModel(
        [lambda fence: [ToolCall("weather", '{"city": "Bonn"}', "call_7", fence), TurnEnd(fence)], spoken],
        Capabilities(tools=True, text_input=True),
    )
    client = await talk(model)
    tool = {"type": "function", "name": "weather", "description": "...", "parameters": {"type": "object"}}
    await client.send("session.update", session={"type": "realtime", "tools": [tool]})
    item = {"type": "message", "role": "user", "id": "mine", "content": [{"type": "input_text", "text": "rain?"}]}
    await client.send("conversation.item.create", item=item)
    await client.send("response.create")
    called = await client.until("response.done")
    await client.send("conversation.item.create", item={"type": "function_call_output", "call_id": "call_7", "output": "sun"})
    await client.send("response.create")
    answered = await client.until("response.done")

    check(called + answered)
    arguments = next(event for event in called if event["type"] == "response.function_call_arguments.done")
    assert (arguments["name"], arguments["arguments"]) == ("weather", '{"city": "Bonn"}')
    assert next(event for event in called if event["type"] == "conversation.item.added")["item"]["id"] == "mine"
    stream: Any = model.streams[0]
    assert [message.role for message in stream.asked[1][0]] == ["user", "assistant", "tool"]


async def test_items_are_shown_cut_and_deleted(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel([spoken]))
    await client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
    await client.send("input_audio_buffer.append", audio=sound())
    await client.send("input_audio_buffer.commit")
    await client.send("response.create")
    events = await client.until("response.done")
    user = next(event for event in events if event["type"] == "input_audio_buffer.committed")["item_id"]
    answer = events[-1]["response"]["output"][0]["id"]

    await client.send("conversation.item.retrieve", item_id=user)
    shown = await client.until("conversation.item.retrieved")
    await client.send("conversation.item.truncate", item_id=answer, content_index=0, audio_end_ms=50)
    await client.send("conversation.item.truncate", item_id=answer, content_index=0, audio_end_ms=10_000)
    await client.send("conversation.item.retrieve", item_id=answer)
    cut = await client.until("conversation.item.retrieved")
    await client.send("conversation.item.delete", item_id=user)
    deleted = await client.until("conversation.item.deleted")

    check(shown + cut + deleted)
    assert shown[-1]["item"]["content"][0]["audio"] == sound()
    assert [event["type"] for event in cut] == ["conversation.item.truncated", "error", "conversation.item.retrieved"]
    assert cut[1]["error"]["param"] == "audio_end_ms"
    assert cut[2]["item"]["content"][0]["transcript"] == "good "


async def test_an_answer_out_of_band_leaves_the_conversation_alone(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel([spoken], Capabilities(text_input=True, text_output=True)))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "classify"}]}
    response = {"conversation": "none", "input": [item], "output_modalities": ["text"], "metadata": {"topic": "x"}}
    await client.send("response.create", response=response)

    events = await client.until("response.done")

    check(events)
    assert not client.actor.session.items
    assert events[-1]["response"]["conversation_id"] is None
    assert "response.output_text.done" in [event["type"] for event in events]


@pytest.mark.parametrize("form", [{"type": "audio/pcmu"}, {"type": "audio/pcma"}, {"type": "audio/pcm", "rate": 16_000}])
async def test_other_formats_go_both_ways(talk: Callable[..., Any], form: dict[str, Any]) -> None:
    client = await talk(ScriptedTurnModel([spoken]))
    audio = {"input": {"format": form, "turn_detection": None}, "output": {"format": form}}
    await client.send("session.update", session={"type": "realtime", "audio": audio})
    await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(8000)).decode())
    await client.send("input_audio_buffer.commit")
    await client.send("response.create")

    events = await client.until("response.done")

    assert (
        next(e for e in events if e["type"] == "session.updated")["session"]["audio"]["output"]["format"]["type"]
        == form["type"]
    )
    data = b"".join(base64.b64decode(e["delta"]) for e in events if e["type"] == "response.output_audio.delta")
    rate, width = form.get("rate", 8000), 2 if form["type"] == "audio/pcm" else 1
    assert len(data) == 0.2 * rate * width


WRONG = {
    "no type": ({}, "missing_required_parameter", "type"),
    "unknown event": ({"type": "response.craete"}, "unknown_event", "type"),
    "unknown field": ({"type": "response.cancel", "respons_id": "x"}, "unknown_parameter", "respons_id"),
    "empty commit": ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
    "nothing to cancel": ({"type": "response.cancel"}, "response_cancel_not_active", "response_id"),
    "nothing to answer": ({"type": "response.create"}, "response_create_without_input", None),
    "no base64": ({"type": "input_audio_buffer.append", "audio": "%%"}, "bad_audio", None),
    "no item": ({"type": "conversation.item.delete", "item_id": "item_9"}, "item_not_found", "item_id"),
    "both modalities": (
        {"type": "session.update", "session": {"output_modalities": ["audio", "text"]}},
        "invalid_value",
        "session.output_modalities",
    ),
    "NaN threshold": (
        {
            "type": "session.update",
            "session": {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": float("nan")}}}},
        },
        "invalid_value",
        "session.audio.input.turn_detection.threshold",
    ),
    "huge threshold": (
        {
            "type": "session.update",
            "session": {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 10**400}}}},
        },
        "invalid_value",
        "session.audio.input.turn_detection.threshold",
    ),
    "unknown detection field": (
        {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "server_vad", "treshold": 1}}}}},
        "unknown_parameter",
        "session.audio.input.turn_detection.treshold",
    ),
    "mcp tool": (
        {"type": "session.update", "session": {"tools": [{"type": "mcp", "server_label": "x"}]}},
        "unsupported_tool",
        "session.tools",
    ),
    "beta session": (
        {"type": "session.update", "session": {"modalities": ["audio"]}},
        "unknown_parameter",
        "session.modalities",
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_is_wrong_is_answered_and_the_session_goes_on(talk: Callable[..., Any], case: str) -> None:
    message, code, param = WRONG[case]
    client = await talk(ScriptedTurnModel([spoken]))

    await client.actor.receive({"event_id": "mine_1", **message})
    error = (await client.until("error"))[-1]["error"]
    await client.send("session.update", session={"instructions": "be brief"})
    updated = (await client.until("session.updated"))[-1]["session"]

    check(client.events)
    assert (error["code"], error["event_id"]) == (code, "mine_1")
    if param is not None:
        assert error["param"] == param
    assert updated["instructions"] == "be brief"


async def test_two_quick_changes_both_hold(talk: Callable[..., Any]) -> None:
    client = await talk(ScriptedTurnModel())
    await client.send("session.update", session={"instructions": "one"})
    await client.send("session.update", session={"max_output_tokens": 7})

    await client.until("session.updated")
    last = (await client.until("session.updated"))[-1]["session"]

    assert (last["instructions"], last["max_output_tokens"]) == ("one", 7)


async def test_a_client_of_the_realtime_api_gets_none_of_our_own_events(talk: Callable[..., Any]) -> None:
    from omni_duplex.model import Listen

    client = await talk(ScriptedModel([lambda fence: [Listen(fence)], lambda fence: spoken(fence)]))
    for _ in range(2):
        await client.send("input_audio_buffer.append", audio=sound(1920))

    events = await client.until("response.done")

    check(events)
    assert "response.listen" not in [event["type"] for event in events]
