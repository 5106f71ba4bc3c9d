"""Realtime sessions over real sockets: the official client, and clients that mean no good. The model is a script."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from omni_duplex.manager import SessionManager
from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, ToolCall, TurnEnd
from omni_duplex.testing import ScriptedTurnModel
from omni_duplex.testing.speech import missing_speech, silence, speak

pytestmark = pytest.mark.anyio

MODEL = "org/fake-tts"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def spoken(fence: Fence) -> list[Any]:
    half = AudioOut(np.full(2400, 0.25, np.float32), 24_000, fence)
    return [TextOut("good ", fence), half, TextOut("day", fence), half, TurnEnd(fence)]


def turns(count: int = 8) -> ScriptedTurnModel:
    return ScriptedTurnModel([spoken] * count, Capabilities(text_input=True, text_output=True, tools=True))


def raw(served: Any, path: str = "/v1/realtime", key: str | None = "key-1", **options: Any) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return connect(f"{served.url}{path}", additional_headers=headers, **options)


async def next_event(ws: Any, kind: str | None = None) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            event: dict[str, Any] = json.loads(await ws.recv())
            if kind is None or event["type"] == kind:
                return event


async def test_the_official_client_holds_a_conversation(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns()) as served, served.client.realtime.connect(model=MODEL) as session:
        created = await session.recv()
        assert created.type == "session.created"
        await session.session.update(session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
        await session.input_audio_buffer.append(audio=base64.b64encode(bytes(9600)).decode())
        await session.input_audio_buffer.commit()
        await session.response.create()
        audio, words, done = b"", "", None
        async for event in session:
            if event.type == "response.output_audio.delta":
                audio += base64.b64decode(event.delta)
            elif event.type == "response.output_audio_transcript.delta":
                words += event.delta
            elif event.type == "response.done":
                done = event.response
                break
    assert words == "good day"
    np.testing.assert_array_equal(np.frombuffer(audio, "<i2"), np.full(4800, round(0.25 * 32767)))
    assert done is not None
    assert done.status == "completed"


@pytest.fixture
def real_ears() -> Any:
    """What makes ears with Silero's weights."""
    from omni_core.errors import DependencyError
    from omni_duplex.vad.ear import silero_ears

    if (reason := missing_speech()) is not None:
        pytest.skip(reason)
    try:
        return silero_ears(None)
    except DependencyError as error:
        pytest.skip(str(error))


async def test_a_spoken_turn_is_found_answered_and_interrupted(serve_sessions: Callable[..., Any], real_ears: Any) -> None:
    """The official client speaks; the server finds the turns by itself, and a second one stops the first answer."""
    words = speak("Good morning, can you hear me now?")
    question = np.concatenate([silence(0.5), words, silence(1.0)])
    model = turns()
    model.hold()
    async with serve_sessions(model, ear=real_ears) as served, served.client.realtime.connect(model=MODEL) as session:

        async def say(pcm: np.ndarray[Any, Any]) -> None:
            for at in range(0, len(pcm), 960):
                data = (pcm[at : at + 960] * 32767).astype("<i2").tobytes()
                await session.input_audio_buffer.append(audio=base64.b64encode(data).decode())

        async def until(kind: str) -> list[Any]:
            seen: list[Any] = []
            async with asyncio.timeout(20):
                while not seen or seen[-1].type != kind:
                    seen.append(await session.recv())
            return seen

        await say(question)
        seen = await until("response.created")
        assert [event.type for event in seen][1:] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
        ]
        started, stopped = seen[1:3]
        assert abs(started.audio_start_ms - (500 - 300)) <= 64, "the padding of 300 ms is heard, too"
        assert abs(stopped.audio_end_ms - (500 + len(words) / 24)) <= 128
        model.give(2)
        await until("response.output_audio.delta")
        await say(question)
        ended = (await until("response.done"))[-1].response
        assert (ended.status, ended.status_details.reason) == ("cancelled", "turn_detected")
        model.give(100)
        assert (await until("response.done"))[-1].response.status == "completed"


async def test_two_sessions_and_no_third(serve_sessions: Callable[..., Any]) -> None:
    """FE-08: the refusal says that trying again can help, before the socket is closed with 1013."""
    async with serve_sessions(turns()) as served, raw(served) as one, raw(served) as two:
        await next_event(one, "session.created")
        await next_event(two, "session.created")
        async with raw(served) as three:
            refused = await next_event(three)
            with pytest.raises(ConnectionClosed) as closed:
                await three.recv()
        assert refused["error"]["code"] == "resource_exhausted"
        assert refused["error"]["retryable"] is True
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        await one.close()
        async with asyncio.timeout(10):
            while served.manager.placement.held > 1:
                await asyncio.sleep(0.01)
        async with raw(served) as four:
            await next_event(four, "session.created")


@pytest.mark.parametrize("key", [None, "wrong", ""])
async def test_no_key_no_session(serve_sessions: Callable[..., Any], key: str | None) -> None:
    """E11: on the socket as on any route, and never by the query."""
    async with serve_sessions(turns()) as served:
        for path in ("/v1/realtime", "/v1/duplex", "/v1/live/sessions", "/v1/realtime?api_key=key-1"):
            with pytest.raises(InvalidStatus) as refused:
                async with raw(served, path, key):
                    pass
            response = refused.value.response
            assert response.status_code == 401
            assert json.loads(response.body or b"")["error"]["code"] == "invalid_api_key"
            assert response.headers["X-Request-Id"]
        assert served.manager.placement.held == 0


async def test_a_browser_sends_its_key_as_a_subprotocol(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns()) as served:
        protocols = ["realtime", "openai-insecure-api-key.key-1"]
        async with raw(served, key=None, subprotocols=protocols) as ws:
            await next_event(ws, "session.created")
            assert ws.subprotocol == "realtime", "the key is not sent back"


async def test_a_model_without_sessions_says_so(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(None) as served, raw(served) as ws:
        assert "no realtime sessions" in (await next_event(ws))["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


ABUSE = {
    "no JSON": "{",
    "no object": "[1]",
    "binary": b"\x00\x01",
    "deep": "[" * 100_000,
    "unknown event": '{"type": "response.invent"}',
    "a number for a text": '{"type": 7}',
    "odd base64": '{"type": "input_audio_buffer.append", "audio": "A"}',
    "NaN rate": '{"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcm", "rate": NaN}}}}}',
    "NaN in a tool": '{"type": "session.update", "session": {"tools": [{"type": "function", "name": "f", "strict": NaN}]}}',
    "huge number": json.dumps(
        {"type": "session.update", "session": {"truncation": {"type": "retention_ratio", "retention_ratio": 10**400}}}
    ),
    "half a pair": r'{"type": "session.update", "session": {"instructions": "\ud800"}}',
    "half a pair as the type": r'{"type": "\ud800"}',
    "long type": json.dumps({"type": "é" * 2_000_000}),
    "null audio": '{"type": "input_audio_buffer.append", "audio": null}',
}


@pytest.mark.parametrize("case", ABUSE)
async def test_a_bad_message_gets_one_error_and_the_next_turn_works(serve_sessions: Callable[..., Any], case: str) -> None:
    """B27: bad JSON, binary frames, unknown types, bad base64: one error each, and the socket stays open."""
    async with serve_sessions(turns()) as served, raw(served) as ws:
        await next_event(ws, "session.created")
        await ws.send(ABUSE[case])
        error = (await next_event(ws, "error"))["error"]
        assert {"type", "code", "message", "param"} <= set(error)
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        await ws.send(json.dumps({"type": "conversation.item.create", "item": item}))
        await ws.send(json.dumps({"type": "response.create"}))
        done = await next_event(ws, "response.done")
        assert done["response"]["status"] == "completed"


async def test_a_bug_of_ours_does_not_look_like_a_normal_end(
    serve_sessions: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, actor: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(SessionManager, "attach", broken)
    async with serve_sessions(turns()) as served, raw(served) as ws:
        with pytest.raises(ConnectionClosed) as closed:
            await ws.recv()

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011
    assert "secret" not in closed.value.rcvd.reason


async def test_a_frame_that_is_too_long_ends_the_connection_and_nothing_else(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns()) as served, raw(served) as other, raw(served, max_size=None) as ws:
        await next_event(other, "session.created")
        await next_event(ws, "session.created")
        with suppress(ConnectionClosed):
            await ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": "A" * (16 * 1024**2)}))
        with pytest.raises(ConnectionClosed):
            await next_event(ws, "input_audio_buffer.cleared")
        await other.send(json.dumps({"type": "input_audio_buffer.clear"}))
        await next_event(other, "input_audio_buffer.cleared")


async def test_a_flood_of_events_is_answered_in_order(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns()) as served, raw(served) as ws:
        await next_event(ws, "session.created")

        async def flood() -> None:
            for _ in range(3000):
                await ws.send('{"type": "input_audio_buffer.clear"}')

        sending = asyncio.create_task(flood())
        for _ in range(3000):
            assert (await next_event(ws))["type"] == "input_audio_buffer.cleared"
        await sending


async def test_a_session_is_resumed_over_a_new_socket(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns()) as served:
        async with raw(served, "/v1/duplex") as ws:
            created = await next_event(ws, "session.created")
            session_id, token = created["session"]["id"], created["resume_token"]
            await ws.send(json.dumps({"type": "session.update", "session": {"instructions": "be brief"}}))
            seen = (await next_event(ws, "session.updated"))["server_event_seq"]
        async with raw(served, "/v1/duplex?resume=1") as ws:
            facts = {"session_id": session_id, "resume_token": token, "last_received_server_event_seq": seen - 1}
            await ws.send(json.dumps({"type": "session.resume", **facts}))
            resumed = await next_event(ws)
            again = await next_event(ws)
            assert (resumed["type"], again["type"]) == ("session.resumed", "session.updated")
            assert again["server_event_seq"] == seen
            async with raw(served, "/v1/duplex?resume=1") as thief:
                await thief.send(json.dumps({"type": "session.resume", **facts}))
                assert (await next_event(thief))["error"]["code"] == "invalid_resume_token"
            await ws.send(json.dumps({"type": "session.close"}))
            await next_event(ws, "session.closed")
        assert await served.free_slots() == 2


async def test_a_client_that_leaves_gives_its_slot_back(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns(), max_sessions=1) as served:
        for _ in range(20):
            async with raw(served) as ws:
                await next_event(ws, "session.created")
            assert await served.free_slots() == 1


async def test_a_server_that_stops_says_so_before_it_hangs_up(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns()) as served, raw(served, "/v1/duplex") as ws:
        await next_event(ws, "session.created")

        await served.manager.close("shutdown")

        assert (await next_event(ws, "session.closed"))["reason"] == "shutdown"
        with pytest.raises(ConnectionClosed) as closed:
            await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


def _tool_then_words() -> ScriptedTurnModel:
    def call(fence: Fence) -> list[Any]:
        return [ToolCall("weather", '{"city": "Bonn"}', "call_7", fence), TurnEnd(fence)]

    return ScriptedTurnModel([call, spoken, spoken], Capabilities(text_input=True, tools=True))


TOOL: Any = {"type": "function", "name": "weather", "description": "The weather.", "parameters": {"type": "object"}}
QUESTION: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "rain?"}]}


def _result(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "sun"}


async def test_the_async_client_calls_a_function_and_takes_back_what_was_not_heard(serve_sessions: Callable[..., Any]) -> None:
    model = _tool_then_words()
    async with serve_sessions(model) as served, served.client.realtime.connect(model=MODEL) as session:
        await session.session.update(session={"type": "realtime", "tools": [TOOL]})
        await session.conversation.item.create(item=QUESTION)
        await session.response.create()
        answers: list[Any] = []
        async with asyncio.timeout(20):
            async for event in session:
                assert event.type != "error", event
                if event.type == "response.function_call_arguments.done":
                    assert (event.name, event.arguments) == ("weather", '{"city": "Bonn"}')
                    call_id = event.call_id
                elif event.type == "response.done":
                    answers.append(event.response)
                    if len(answers) == 1:
                        await session.conversation.item.create(item=_result(call_id))
                        await session.response.create()
                    elif len(answers) == 2:
                        item = event.response.output[0].id
                        await session.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=50)
                        await session.response.create()
                    else:
                        break
    stream: Any = model.streams[0]
    assert [message.role for message in stream.asked[1][0]] == ["user", "assistant", "tool"]
    assert stream.asked[2][0][-1].content[0].text == "good ", "the second word began after the cut"


@pytest.mark.filterwarnings("ignore:connect\\(\\) must be used as a context manager:DeprecationWarning")
async def test_the_sync_client_holds_a_conversation_and_is_interrupted(serve_sessions: Callable[..., Any]) -> None:
    """A manual commit, an answer that is cancelled, and the next one; in a thread, since this client blocks."""

    def talk(url: str) -> list[str]:
        client = OpenAI(api_key="key-1", base_url=f"{url.replace('ws', 'http')}/v1", websocket_base_url=f"{url}/v1")
        ends: list[str] = []
        is_cancelled = False
        with client, client.realtime.connect(model=MODEL) as session:
            session.session.update(session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
            session.input_audio_buffer.append(audio=base64.b64encode(bytes(9600)).decode())
            session.input_audio_buffer.commit()
            session.response.create()
            for event in session:
                assert event.type != "error", event
                if event.type == "response.output_audio.delta" and not is_cancelled:
                    is_cancelled = True
                    session.response.cancel()
                elif event.type == "response.done":
                    ends.append(str(event.response.status))
                    if len(ends) == 2:
                        return ends
                    loop.call_soon_threadsafe(model.give, 50)
                    session.response.create()
        return ends

    model, loop = turns(), asyncio.get_running_loop()
    model.hold()
    model.give(2)
    async with serve_sessions(model) as served:
        ends = await asyncio.wait_for(asyncio.to_thread(talk, served.url), 30)
    assert ends == ["cancelled", "completed"]
