"""A client of realtime sessions: sends what is said, takes what is answered, and knows when a conversation is over.

It speaks our own dialect (`/v1/duplex`), which says whether the model takes turns, and answers heartbeats in order: the answer
to one means that everything before it was taken.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from omni_core.errors import ConfigError, DeadlineError, OmniError, ServiceError
from omni_server.talk.screen import Screen
from omni_server.talk.sound import BLOCK, RATE, SILENCE, Sink, Source

OPEN_TIMEOUT_S = 20.0
"""Seconds until a session must be open: the server may have to make room."""
MAX_MESSAGE_BYTES = 16 * 1024**2
_CLOSE_TIMEOUT_S = 2.0
_EXTRA_SILENCE_MS = 1000
"""Sent after a file beyond what ends a turn: the speech detector lets words ring."""


@dataclass(frozen=True)
class Options:
    """How to talk."""

    url: str
    api_key: str = ""
    model: str | None = None
    instructions: str | None = None
    voice: str | None = None
    wait_s: float = 3.0
    """Seconds of silence after which a model that takes no turns is done."""
    timeout_s: float | None = None
    """Seconds for everything; None is for ever."""


async def hold(options: Options, source: Source, sink: Sink, screen: Screen) -> None:
    """Hold a conversation until what is said is answered.

    Raises:
        ConfigError: The URL is none.
        ServiceError: The server is not there, refuses, or ends the session.
        DeadlineError: It took too long.
    """
    address = socket_address(options.url, options.model)
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    try:
        async with asyncio.timeout(options.timeout_s):
            async with connect(
                address,
                additional_headers=headers,
                open_timeout=OPEN_TIMEOUT_S,
                max_size=MAX_MESSAGE_BYTES,
                compression=None,
                proxy=None,
            ) as socket:
                await Conversation(socket, options, source, sink, screen).run()
    except InvalidStatus as error:
        raise _refused(error.response.status_code, options.url) from error
    except ConnectionClosed as error:
        why = error.rcvd.reason or f"code {error.rcvd.code}" if error.rcvd else "without a word"
        raise ServiceError(f"the server closed the connection: {why}", where=options.url) from error
    except TimeoutError as error:
        limit = options.timeout_s if options.timeout_s is not None else OPEN_TIMEOUT_S
        message = f"it was not over after {limit:g} s"
        raise DeadlineError(message, where=options.url, hint="give more time with --timeout") from error
    except (OSError, InvalidHandshake) as error:
        raise ServiceError(f"no server answers: {error}", where=options.url, hint="start it, or correct --url") from error


def socket_address(url: str, model: str | None) -> str:
    """Return where sessions are, given a server's address with or without `/v1`.

    Raises:
        ConfigError: It is no address.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.netloc:
        raise ConfigError(f"{url!r} is no address of a server", where="--url", hint="give one such as http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/v1")
    query = f"model={quote(model, safe='')}" if model else ""
    return urlunsplit((scheme, parts.netloc, f"{path}/v1/duplex", query, ""))


def _refused(status: int, url: str) -> OmniError:
    if status in (401, 403):
        return ServiceError("the server wants a key, or another one", where=url, hint="set OMNI_API_KEY, or give --api-key")
    hint = "it may be another kind of server, or an older one" if status == 404 else "look at the server's log"
    return ServiceError(f"the server answered with status {status}", where=url, hint=hint)


class Conversation:
    """One session over an open socket.

    Args:
        socket: The connection.
        options: How to talk.
        source: What is said.
        sink: Where answers go.
        screen: Where words and levels are shown.
    """

    def __init__(self, socket: ClientConnection, options: Options, source: Source, sink: Sink, screen: Screen) -> None:
        self._socket = socket
        self._options = options
        self._source = source
        self._sink = sink
        self._screen = screen
        self._takes_turns = True
        self._detection: Mapping[str, Any] | None = None
        self._can_truncate = False
        self._is_sent = False
        self._is_speaking = False
        self._open = 0
        """Answers under way."""
        self._answers = 0
        self._silence = 0
        """Blocks of silence since the model last said something."""
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Talk until it is over, and end the session however it went: the server would hold it for a client that comes back."""
        try:
            await self._begin()
            await self._exchange()
        finally:
            with suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._send("session.close")

    async def _exchange(self) -> None:
        """Say and hear until it is over."""
        listening = asyncio.create_task(self._listen())
        saying = asyncio.create_task(self._say())
        over = asyncio.create_task(self._over.wait())
        tasks = {listening, saying, over}
        try:
            while not over.done():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                tasks -= {saying} & done
        finally:
            for task in (listening, saying, over):
                task.cancel()
            await asyncio.gather(listening, saying, over, return_exceptions=True)

    async def _begin(self) -> None:
        """Wait for the session and tell it how it is to be.

        Raises:
            ServiceError: The server refuses.
        """
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            created = await self._expect("session.created")
            settings: dict[str, Any] = {}
            if self._options.instructions is not None:
                settings["instructions"] = self._options.instructions
            if self._options.voice is not None:
                settings["audio"] = {"output": {"voice": self._options.voice}}
            if settings:
                await self._send("session.update", session=settings)
                await self._expect("session.updated")
        able = created["capabilities"]
        self._takes_turns = not able["supports_model_native_turn_policy"]
        self._can_truncate = able["supports_audio_truncate"]
        self._detection = created["session"]["audio"]["input"]["turn_detection"]
        if self._source.is_endless and self._takes_turns and self._detection is None:
            raise ServiceError(
                "this model answers turns, and the server does not find their end",
                where=self._options.url,
                hint="run `omni vad` on the server and start it anew, or give --input",
            )

    async def _expect(self, kind: str) -> Mapping[str, Any]:
        event = await self._receive()
        if event["type"] == "error":
            raise ServiceError(event["error"]["message"], where=self._options.url)
        if event["type"] != kind:
            raise ServiceError(f"the server sent {event['type']} in place of {kind}", where=self._options.url)
        return event

    async def _receive(self) -> Mapping[str, Any]:
        event: Mapping[str, Any] = json.loads(await self._socket.recv())
        return event

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    # -- what is said ----------------------------------------------------------------------------------------------

    async def _say(self) -> None:
        async for block in self._source.blocks():
            self._screen.hear("you", block)
            await self._append(block)
        if not self._takes_turns:
            await self._stay_silent()
        elif self._detection is None:
            await self._commit()
        else:
            quiet_ms = self._detection.get("silence_duration_ms", 2000) + _EXTRA_SILENCE_MS
            for _ in range(-(-quiet_ms * RATE // (1000 * BLOCK))):
                await self._append(SILENCE)
                await asyncio.sleep(BLOCK / RATE if self._source.is_paced else 0)
        self._is_sent = True
        await self._send("session.heartbeat")

    async def _append(self, block: bytes) -> None:
        await self._send("input_audio_buffer.append", audio=base64.b64encode(block).decode())

    async def _commit(self) -> None:
        await self._send("input_audio_buffer.commit")
        await self._send("response.create")

    async def _stay_silent(self) -> None:
        """Go on with silence, as fast as it plays, until the model has heard enough of it and said nothing."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        number = self._silence = 0
        # Counted by what is sent: a server that is slow to take it has not heard it yet.
        while self._silence * BLOCK < self._options.wait_s * RATE:
            await self._append(SILENCE)
            number, self._silence = number + 1, self._silence + 1
            await asyncio.sleep(max(0.0, began + number * BLOCK / RATE - loop.time()))

    # -- what is answered ------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            await self._take(await self._receive())

    async def _take(self, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind == "response.output_audio.delta":
            self._play(base64.b64decode(event["delta"]), event["item_id"])
        elif kind == "response.created":
            self._open += 1
        elif kind == "response.output_audio_transcript.done":
            self._screen.say("model", event["transcript"])
        elif kind == "conversation.item.input_audio_transcription.completed":
            self._screen.say("you", event["transcript"])
        elif kind == "input_audio_buffer.speech_started":
            self._is_speaking = True
            await self._stop_playing()
        elif kind == "input_audio_buffer.speech_stopped":
            self._is_speaking = False
        elif kind == "response.done":
            await self._answered(event["response"])
        elif kind == "session.heartbeat_ack":
            await self._settle()
        elif kind == "error":
            self._screen.note(f"the server says: {event['error']['message']}")
        elif kind in ("session.closed", "session.expired"):
            raise ServiceError(f"the server ended the session: {event['reason']}", where=self._options.url)

    def _play(self, pcm: bytes, item_id: str) -> None:
        self._silence = 0
        self._screen.hear("model", pcm)
        self._sink.play(pcm, item_id)

    async def _stop_playing(self) -> None:
        """Let the user interrupt, and tell the server what was heard."""
        played = self._sink.stop()
        if played is not None and self._can_truncate:
            where = {"item_id": played.item_id, "content_index": 0}
            await self._send("conversation.item.truncate", **where, audio_end_ms=played.ms)

    async def _answered(self, response: Mapping[str, Any]) -> None:
        self._open -= 1
        status = response["status"]
        if status == "failed":
            error = response["status_details"]["error"]
            raise ServiceError(f"the answer failed: {error['message']}", where=self._options.url)
        self._answers += 1
        if status != "completed":
            self._screen.note(f"(the answer is {status}: {response['status_details']['reason']})")
        if self._is_sent:
            await self._send("session.heartbeat")

    async def _settle(self) -> None:
        """End if nothing is under way: the server has taken all that was sent before its answer came.

        Raises:
            ServiceError: Nothing of what was said was understood as speech.
        """
        if not self._is_sent or (self._takes_turns and self._open):
            return
        if self._takes_turns and self._is_speaking:
            self._is_speaking = False
            await self._commit()
            await self._send("session.heartbeat")
        elif self._takes_turns and not self._answers:
            raise ServiceError("the server heard no speech", where=self._options.url, hint="say it louder, or for longer")
        else:
            self._over.set()
