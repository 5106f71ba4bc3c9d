"""The Live API and client secrets over real sockets, with the official client. The model is a script."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.realtime import ClientSecretCreateResponse
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from omni_duplex.model import AudioOut, Capabilities, Fence, TextOut, TurnEnd
from omni_duplex.testing import LoudEar, ScriptedTurnModel
from omni_server.client_secrets import ClientSecrets

pytestmark = pytest.mark.anyio

MODEL = "org/fake-tts"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def spoken(fence: Fence) -> list[Any]:
    return [TextOut("good day", fence), AudioOut(np.full(2400, 0.25, np.float32), 24_000, fence), TurnEnd(fence)]


def turns() -> ScriptedTurnModel:
    return ScriptedTurnModel([spoken] * 8, Capabilities(text_input=True, text_output=True, tools=True))


def sound(loud: bool) -> str:
    return base64.b64encode(np.full(2400, 9000 if loud else 0, "<i2").tobytes()).decode()


async def test_the_official_client_holds_a_conversation(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker()) as served, served.client.live.connect() as live:
        await live.session.start(session={"model": MODEL, "audio": {"format": {"type": "audio/pcm", "rate": 24_000}}})
        started = await live.recv()
        assert started.type == "session.started"
        assert started.session.model == MODEL
        for loud in (True, False):
            await live.session.input_audio.append(audio=sound(loud))
        audio, words, closed = b"", "", None
        async for event in live:
            if event.type == "session.output_audio.delta":
                audio += base64.b64decode(event.delta)
            elif event.type == "session.output_transcript.delta":
                words += event.delta
            elif event.type == "session.usage.updated":
                await live.session.close()
            elif event.type == "session.closed":
                closed = event
                break
    assert words == "good day"
    np.testing.assert_array_equal(np.frombuffer(audio, "<i2"), np.full(2400, round(0.25 * 32767)))
    assert closed is not None
    assert closed.reason == "close_requested"


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # the SDK's own
async def test_the_official_client_without_async_holds_one_too(serve_sessions: Callable[..., Any]) -> None:
    def talk(url: str) -> list[str]:
        with OpenAI(api_key="key-1", websocket_base_url=url) as client, client.live.connect() as live:
            live.session.start(session={"model": MODEL})
            seen = [live.recv().type]
            for loud in (True, False):
                live.session.input_audio.append(audio=sound(loud))
            while seen[-1] != "session.usage.updated":
                seen.append(live.recv().type)
            return seen

    async with serve_sessions(turns(), ear=LoudEar.maker()) as served:
        seen = await asyncio.wait_for(asyncio.to_thread(talk, f"{served.url}/v1"), 20)

    assert seen == [
        "session.started",
        "session.output_transcript.delta",
        "session.output_audio.delta",
        "session.usage.updated",
    ]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"type": "session.input_audio.mute"}, "session_not_started"),
        ({"type": "session.start", "session": {"model": "org/another"}}, "model_not_found"),
        ({"type": "session.start", "session": {"model": MODEL, "store": True}}, "unsupported_parameter"),
    ],
)
async def test_a_bad_beginning_is_answered_and_holds_no_slot(
    serve_sessions: Callable[..., Any], first: dict[str, Any], code: str
) -> None:
    async with serve_sessions(turns(), ear=LoudEar.maker()) as served:
        headers = {"Authorization": "Bearer key-1"}
        async with connect(f"{served.url}/v1/live/sessions", additional_headers=headers) as ws:
            await ws.send(json.dumps({**first, "event_id": "one"}))
            error = json.loads(await ws.recv())["error"]
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
        assert (error["code"], error["client_event_id"]) == (code, "one")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert served.manager.placement.held == 0


# -- client secrets ----------------------------------------------------------------------------------------------------


def root(served: Any) -> str:
    return str(served.page).removesuffix("/ui")


async def test_a_secret_opens_sockets_with_its_settings_and_nothing_else(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns()) as served:
        settings = {
            "type": "realtime",
            "model": "fake-tts",
            "instructions": "be brief",
            "audio": {"input": {"format": {"type": "audio/pcmu"}}},
        }
        made = await served.client.realtime.client_secrets.create(
            session=settings, expires_after={"anchor": "created_at", "seconds": 60}
        )  # type: ignore[arg-type]
        ClientSecretCreateResponse.model_validate(made.model_dump(warnings=False), strict=True)
        assert 50 < made.expires_at - time.time() <= 60
        assert made.session.instructions == "be brief"

        protocols: Any = ["realtime", f"openai-insecure-api-key.{made.value}"]
        async with connect(f"{served.url}/v1/realtime", subprotocols=protocols) as ws:
            session = json.loads(await ws.recv())["session"]
            assert ws.subprotocol == "realtime"
        assert (session["model"], session["instructions"]) == ("fake-tts", "be brief")
        assert session["audio"]["input"]["format"] == {"type": "audio/pcmu"}

        async with AsyncOpenAI(api_key=made.value, websocket_base_url=f"{served.url}/v1") as browser:
            async with browser.realtime.connect(model=MODEL) as realtime:
                created = await realtime.recv()
            assert created.session.model == MODEL
        bearer = {"Authorization": f"Bearer {made.value}"}
        async with httpx.AsyncClient(base_url=root(served), headers=bearer) as http:
            assert (await http.get("/v1/models")).status_code == 401
            assert (await http.post("/v1/realtime/client_secrets")).status_code == 401
        with pytest.raises(InvalidStatus):
            async with connect(f"{served.url}/v1/audio/speech/stream", additional_headers=bearer):
                pass


async def test_an_open_server_makes_secrets_whose_settings_hold(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(turns(), api_key=()) as served:
        made = await served.client.realtime.client_secrets.create(session={"type": "realtime", "instructions": "be brief"})
        async with connect(f"{served.url}/v1/realtime", additional_headers={"Authorization": f"Bearer {made.value}"}) as ws:
            assert json.loads(await ws.recv())["session"]["instructions"] == "be brief"


@pytest.mark.parametrize("kind", ["expired", "forged", "of another server", "cut", "empty", "not ASCII"])
async def test_a_secret_that_does_not_hold_is_refused(serve_sessions: Callable[..., Any], kind: str) -> None:
    ours = ClientSecrets(["key-1"])
    good = ours.make(int(time.time()) + 60, {})
    body, _, signature = good.partition(".")
    value = {
        "expired": ours.make(int(time.time()) - 1, {}),
        "forged": f"{ours.make(1 << 40, {}).partition('.')[0]}.{signature}",
        "of another server": ClientSecrets(["key-2"]).make(int(time.time()) + 60, {}),
        "cut": good[:-1],
        "empty": "ek_",
        "not ASCII": f"{body}.\u00e9",
    }[kind]
    assert ours.read(good, time.time()) == {}
    assert ours.read(value, time.time()) is None
    if kind == "not ASCII":
        return  # no header can carry it
    async with serve_sessions(turns()) as served:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{served.url}/v1/realtime", additional_headers={"Authorization": f"Bearer {value}"}):
                pass
        assert refused.value.response.status_code == 401


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"expires_after": {"anchor": "created_at", "seconds": 9}}, 400, "expires_after"),
        ({"expires_after": {"anchor": "created_at", "seconds": 7201}}, 400, "expires_after"),
        ({"session": {"type": "realtime", "model": "org/another"}}, 404, "model"),
        ({"session": {"type": "realtime", "model": 7}}, 404, "model"),
        ({"session": {"type": "realtime", "instructions": "x" * 3000}}, 400, "session"),
        ({"session": {"type": "realtime", "invented": 1}}, 400, "session.invented"),
        ({"session": {"type": "transcription"}}, 501, "session.type"),
        ({"invented": 1}, 400, "invented"),
    ],
)
async def test_a_secret_that_cannot_be_made_says_why(
    serve_sessions: Callable[..., Any], body: dict[str, Any], status: int, param: str
) -> None:
    async with serve_sessions(turns()) as served, httpx.AsyncClient(headers={"Authorization": "Bearer key-1"}) as http:
        answer = await http.post(f"{root(served)}/v1/realtime/client_secrets", json=body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("path", ["realtime/calls", "realtime/sessions", "realtime/transcription_sessions", "live/sessions"])
async def test_what_is_not_served_says_what_is(serve_sessions: Callable[..., Any], path: str) -> None:
    async with serve_sessions(turns()) as served, httpx.AsyncClient(headers={"Authorization": "Bearer key-1"}) as http:
        answer = await http.post(f"{root(served)}/v1/{path}", content=b"v=0")

    assert answer.status_code == 501
    assert "/v1/" in answer.json()["error"]["message"]


async def test_a_model_without_sessions_makes_no_secrets(serve_sessions: Callable[..., Any]) -> None:
    async with serve_sessions(None) as served, httpx.AsyncClient(headers={"Authorization": "Bearer key-1"}) as http:
        answer = await http.post(f"{root(served)}/v1/realtime/client_secrets")

    assert answer.status_code == 400
    assert "no realtime sessions" in answer.json()["error"]["message"]
