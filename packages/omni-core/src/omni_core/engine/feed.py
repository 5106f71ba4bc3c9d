"""The input of a request that goes on while it runs: a caller's payloads on their way to the entry stage.

They go with the message that announces them, since no connector leads from a caller to a stage: such payloads are small.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from omni_core.engine.edge import Window
from omni_core.engine.messages import READER, Push
from omni_core.errors import DeadlineError, NotFoundError, RequestError
from omni_core.payload import Payload, encode_payload

if TYPE_CHECKING:
    from omni_core.engine.flight import Flight

WINDOW = 8
"""Payloads that the entry stage may not have taken yet."""
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Longest payload, encoded."""


class Feed:
    """One request's input as it arrives. `push` waits until the request has begun and while too much is under way.

    Args:
        timeout_s: Longest wait for the request to begin.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._window = Window(WINDOW)
        self._flight: Flight | None = None
        self._known = asyncio.Event()
        self._is_whole = False
        """Whether the last payload was sent."""

    @property
    def is_waiting(self) -> bool:
        """Whether the entry stage has everything that came so far, so that only the caller can bring more."""
        return not self._is_whole and self._window.acknowledged == self._window.sent

    def bind(self, flight: Flight) -> None:
        """Take the request that this feeds, when its entry stage is open."""
        self._flight = flight
        self._known.set()

    def close(self) -> None:
        """Let nobody wait any more: the request has ended."""
        self._flight = None
        self._known.set()
        self._window.let_one_in()

    def acknowledge(self) -> None:
        """Note that the entry stage has taken a payload."""
        self._window.acknowledge()

    async def push(self, payload: Payload, *, final: bool = False) -> None:
        """Send the next payload.

        Raises:
            NotFoundError: The request has ended.
            RequestError: The payload is too long, or the last one was sent already.
            DeadlineError: There was no room until the request's deadline, or it did not begin.
        """
        data = encode_payload(payload)
        if len(data) > MAX_PAYLOAD_BYTES:
            raise RequestError(f"a payload of {len(data)} bytes is more than {MAX_PAYLOAD_BYTES}", hint="send smaller ones")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._known.wait()
        except TimeoutError:
            hint = "take its outputs, which begins it"
            raise DeadlineError(f"the request did not begin within {self._timeout_s:g} s", hint=hint) from None
        sequence = await self._window.enter(self._open_flight().deadline, "a payload for the entry stage")
        try:
            flight = self._open_flight()
        except (NotFoundError, RequestError):
            self._window.give_back()  # which wakes the next one that waits in vain
            raise
        if self._window.acknowledged == sequence:
            flight.moved = asyncio.get_running_loop().time()  # until now the stages waited for the caller
        self._is_whole = final
        for stage_id in flight.entries:
            flight.opened[stage_id].post(Push(flight.id, READER, sequence, data, final))

    def _open_flight(self) -> Flight:
        """Return the request, which takes more."""
        if self._flight is None or self._flight.ended:
            raise NotFoundError("the request has ended", hint="look at its outputs for the reason")
        if self._is_whole:
            raise RequestError("the last payload was sent before", hint="send what comes later as another request")
        return self._flight
