"""Fixtures of the server's tests: an application on a fake engine, and a driver that plays the ASGI server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from omni_core.plugins import PluginManager
from omni_server import hookspecs, plugin
from omni_server.app import build_app
from omni_server.context import ServerSettings
from omni_server.fake_chat import SPEAKING
from omni_server.fake_engine import FakeEngine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def talking() -> FakeEngine:
    """An engine that answers conversations in text and speech."""
    return FakeEngine(chat=SPEAKING, stages=("thinker", "talker", "code2wav"), speaks=False)


@pytest.fixture
def chatty(talking: FakeEngine, make_client: Callable[..., Client]) -> Client:
    """A client of an application on `talking`."""
    return make_client(talking)


def plugins_with(**others: Any) -> PluginManager:
    """Return a plugin manager that knows the server's own plugin and `others` by their distributions' names."""
    manager = PluginManager()
    manager.add_hookspecs(hookspecs)
    manager.add(plugin, "omni-server")
    for name, other in others.items():
        manager.add(other, name)
    return manager


@pytest.fixture
def make_plugins() -> Callable[..., PluginManager]:
    return plugins_with


class Client(httpx.AsyncClient):
    """A client of an application in this process."""

    def __init__(self, app: Any, **options: Any) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        super().__init__(transport=transport, base_url="http://test", **options)
        self.app = app

    async def speak(self, text: str = "hello", *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """Ask for speech."""
        return await self.post("/v1/audio/speech", json={"input": text, **fields}, headers=headers)

    async def chat(self, content: Any = "hello", **fields: Any) -> httpx.Response:
        """Send a conversation of one message, or that of `messages`."""
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        return await self.post("/v1/chat/completions", json={"messages": messages, **fields})

    async def chat_refused(self, param: str | None, content: Any = "hello", *, status: int = 400, **fields: Any) -> str:
        """Send a conversation, check that it is refused with an OpenAI error object, and return the message."""
        response = await self.chat(content, **fields)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param, error
        return str(error["message"])

    async def refused(self, status: int, param: str | None = None, **fields: Any) -> str:
        """Ask for speech, check that it is refused with an OpenAI error object, and return the message."""
        response = await self.post("/v1/audio/speech", json={"input": "hello", **fields})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param, error
        return str(error["message"])


@pytest.fixture
def make_client(engine: FakeEngine) -> Callable[..., Client]:
    """Make a client of an application on `engine`, with settings by keyword."""

    def make(used: FakeEngine | None = None, **settings: Any) -> Client:
        return Client(build_app(used or engine, ServerSettings("org/fake-tts", **settings), plugins=plugins_with()))

    return make


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()


class Call:
    """One request to an application, message by message, with a client that can leave."""

    def __init__(self, app: Any, body: dict[str, Any], path: str = "/v1/audio/speech") -> None:
        raw = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("test", 1),
            "server": ("test", 80),
        }
        self.leave = asyncio.Event()
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.stalled = False
        self._body: bytes | None = raw
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self.stalled:
            await asyncio.Event().wait()
        self.sent.put_nowait(message)

    async def next(self) -> dict[str, Any]:
        """Return the next message of the answer."""
        return await asyncio.wait_for(self.sent.get(), 10)

    async def ended(self) -> list[dict[str, Any]]:
        """Wait until the application is done and return what it sent since the last look."""
        await asyncio.wait_for(self.task, 10)
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]


@pytest.fixture
def call() -> type[Call]:
    return Call


def read_wav(data: bytes) -> tuple[int, int, np.ndarray[Any, Any]]:
    with wave.open(io.BytesIO(data)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
        assert len(samples) == file.getnframes()
        return file.getframerate(), file.getnchannels(), samples


@pytest.fixture
def wav_reader() -> Callable[[bytes], tuple[int, int, np.ndarray[Any, Any]]]:
    """Read a WAV file as (rate, channels, samples int16 [n, channels])."""
    return read_wav


def make_wav(seconds: float = 2.0, rate: int = 16000, channels: int = 1) -> bytes:
    times = np.arange(round(seconds * rate)) / rate
    tone = np.rint(8000 * np.sin(2 * np.pi * 200 * times)).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(tone, channels).tobytes())
    return buffer.getvalue()


@pytest.fixture
def wav_maker() -> Callable[..., bytes]:
    """Make a WAV file of a tone."""
    return make_wav


@pytest.fixture
def data_uri() -> str:
    """Two seconds of reference audio."""
    return "data:audio/wav;base64," + base64.b64encode(make_wav()).decode()


def read_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part]


@pytest.fixture
def events() -> Callable[[str], list[dict[str, Any]]]:
    """Read server-sent events as their JSON."""
    return read_events


class Talk:
    """One WebSocket connection to an application, message by message, with a client that can leave or stop reading."""

    def __init__(self, app: Any, path: str = "/v1/audio/speech/stream", headers: dict[str, str] | None = None) -> None:
        given = {"host": "test", **(headers or {})}
        offered = given.get("sec-websocket-protocol", "")
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "subprotocols": [name.strip() for name in offered.split(",") if name.strip()],
            "client": ("test", 1),
            "server": ("test", 80),
        }
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._given: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._given.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(app(scope, self._given.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        await self.flowing.wait()
        self.sent.put_nowait(message)

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        self.say_raw(json.dumps({"type": kind, **fields}))

    def say_raw(self, text: str | bytes) -> None:
        """Send any text or bytes."""
        self._given.put_nowait({"type": "websocket.receive", "bytes" if isinstance(text, bytes) else "text": text})

    def leave(self, code: int = 1001) -> None:
        """Go away."""
        self._given.put_nowait({"type": "websocket.disconnect", "code": code})

    async def next(self) -> dict[str, Any]:
        """Return the next raw message of the server."""
        return await asyncio.wait_for(self.sent.get(), 10)

    async def event(self) -> dict[str, Any]:
        """Return the next message, which must be an event."""
        message = await self.next()
        assert "text" in message, message
        found: dict[str, Any] = json.loads(message["text"])
        return found

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Return the events up to one of a kind; binary frames come as `{"type": "bytes", "data": ...}`."""
        found = []
        while not found or found[-1]["type"] != kind:
            message = await self.next()
            assert message["type"] != "websocket.close", message
            if message.get("bytes") is not None:
                found.append({"type": "bytes", "data": message["bytes"]})
            elif "text" in message:
                found.append(json.loads(message["text"]))
        return found

    async def closed(self) -> tuple[int, list[dict[str, Any]]]:
        """Wait until the server closes; return the close code and the events before."""
        found = []
        while (message := await self.next())["type"] != "websocket.close":
            if "text" in message:
                found.append(json.loads(message["text"]))
        await asyncio.wait_for(asyncio.gather(self.task, return_exceptions=True), 10)
        return message["code"], found


@pytest.fixture
def talk() -> type[Talk]:
    return Talk
