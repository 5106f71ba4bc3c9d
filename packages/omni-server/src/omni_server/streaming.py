"""Send what an engine makes while it is made, and stop the engine when nobody listens any more."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from omni_server.errors import request_id

logger = logging.getLogger(__name__)

T = TypeVar("T")

SEND_STALL_S = 60.0
"""Seconds that a client may take no byte before it counts as gone."""


class ClientGoneError(Exception):
    """Tell that the client left, or stopped reading, before its answer was complete."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it as soon as the client leaves.

    Call it after the body was read.

    Raises:
        ClientGoneError: The client left first.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for item in (task, gone):
            item.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class AnswerWriter:
    """Write one answer: its head with the first byte, then pieces of the body, then the end."""

    def __init__(self, send: Send, headers: dict[str, str], status: int = 200) -> None:
        self._send = send
        self._headers = headers
        self._status = status
        self.started = False

    async def write(self, data: bytes) -> None:
        """Send a piece of the body. An empty one does nothing."""
        if data:
            await self.start()
            await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def start(self) -> None:
        """Send the head if it is not sent yet."""
        if not self.started:
            self.started = True
            raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
            await self._put({"type": "http.response.start", "status": self._status, "headers": raw})

    async def end(self) -> None:
        """Send the end of the body. An answer without it reaches the client as a broken one."""
        await self.start()
        await self._put({"type": "http.response.body", "body": b"", "more_body": False})

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(SEND_STALL_S):
                await self._send(message)
        except TimeoutError as error:
            raise ClientGoneError(f"it took no byte for {SEND_STALL_S:g} s") from error


class LiveAnswer:
    """A response whose body is made while it is sent.

    Args:
        work: Gets `send`, writes the whole answer and returns. Errors that it raises before the head is sent become error
            answers; the client's leaving cancels it.
    """

    def __init__(self, work: Callable[[Send], Coroutine[Any, Any, None]]) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the work for as long as the client is there."""
        try:
            await while_connected(receive, self._work(send))
        except ClientGoneError as error:
            logger.info("request %s: the client left%s", request_id(scope), f" ({error})" if str(error) else "")


def sse(data: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def as_base64(data: bytes) -> str:
    """Return `data` as base64 without line breaks."""
    return base64.b64encode(data).decode("ascii")
