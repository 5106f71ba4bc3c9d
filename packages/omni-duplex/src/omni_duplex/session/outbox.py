"""What waits for a client: bounded, in order, each event with its number, and kept for a client that may come back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omni_duplex.errors import DuplexError

MAX_BYTES = 4 * 1024**2
"""Most bytes that may wait for a client that reads slowly."""
MAX_AUDIO_S = 30.0
"""Most seconds of audio that may wait."""
REPLACED = 4001
"""Code with which a socket is closed whose session another one has taken over."""
_OVERHEAD = 256
"""Bytes that an event is taken for besides its audio and text."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One event in its wire form."""

    seq: int
    event: dict[str, Any]
    nbytes: int
    audio_s: float
    at: float


class SlowConsumer(Exception):
    """More waits for the client than may."""


def size_of(value: object) -> int:
    """Return the characters of all texts in an event, however deep: transcripts, and the audio of an item."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, (list, tuple)) else 0


class Journal:
    """Events that a client may have missed, bounded by age and bytes.

    Args:
        ttl_s: Seconds that an event is kept.
        max_bytes: Bytes that all of them may be.
    """

    def __init__(self, ttl_s: float, max_bytes: int) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._kept: deque[Sent] = deque()
        self._bytes = 0
        self._dropped = 0
        """Number of the last event that is not kept any more."""

    def add(self, sent: Sent) -> None:
        """Keep an event."""
        self._kept.append(sent)
        self._bytes += sent.nbytes
        while self._kept and (self._bytes > self._max_bytes or self._kept[0].at + self._ttl_s < sent.at):
            self._drop()

    def acknowledge(self, seq: int) -> None:
        """Forget what the client has."""
        while self._kept and self._kept[0].seq <= seq:
            self._drop()

    def since(self, seq: int, now: float) -> list[Sent]:
        """Return every event after the one that the client had last.

        Raises:
            DuplexError: Some of them are gone; the client must begin anew.
        """
        while self._kept and self._kept[0].at + self._ttl_s < now:
            self._drop()
        if seq < self._dropped:
            raise DuplexError(
                "resync_required",
                f"the events after {seq} are not kept any more; the first that is has number {self._dropped + 1}",
                "last_received_server_event_seq",
                hint="open a new session",
            )
        return [sent for sent in self._kept if sent.seq > seq]

    def _drop(self) -> None:
        sent = self._kept.popleft()
        self._bytes -= sent.nbytes
        self._dropped = sent.seq


class Channel:
    """What waits for one socket."""

    def __init__(self) -> None:
        self._waiting: deque[Sent] = deque()
        self._wake = asyncio.Event()
        self._hangup: tuple[int, str] | None = None
        self.nbytes = 0
        """Bytes that wait."""
        self.audio_s = 0.0
        """Seconds of audio that wait."""
        self._largest = (0, 0.0)
        """Most bytes and most seconds of one event since nothing waited."""

    def has_room(self, nbytes: int, audio_s: float) -> bool:
        """Whether one more event may wait. The largest one does not count: models may give a whole answer at once."""
        largest_bytes, largest_s = max(self._largest[0], nbytes), max(self._largest[1], audio_s)
        return self.nbytes + nbytes - largest_bytes <= MAX_BYTES and self.audio_s + audio_s - largest_s <= MAX_AUDIO_S

    def add(self, sent: Sent, *, counts: bool = True) -> None:
        """Let an event wait; one that does not count takes no room."""
        sent = sent if counts else replace(sent, nbytes=0, audio_s=0.0)
        self._waiting.append(sent)
        self.nbytes += sent.nbytes
        self.audio_s += sent.audio_s
        self._largest = (max(self._largest[0], sent.nbytes), max(self._largest[1], sent.audio_s))
        self._wake.set()

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        self.nbytes, self.audio_s, self._largest = 0, 0.0, (0, 0.0)

    def hang_up(self, code: int, reason: str) -> None:
        """Close the socket once it has what waits now. The first reason counts."""
        self._hangup = self._hangup or (code, reason)
        self._wake.set()

    async def get(self) -> dict[str, Any] | tuple[int, str]:
        """Return the next event, or the code and the reason with which the socket is to be closed."""
        while not self._waiting and self._hangup is None:
            self._wake.clear()
            await self._wake.wait()
        if self._waiting:
            sent = self._waiting.popleft()
            self.nbytes -= sent.nbytes
            self.audio_s = max(0.0, self.audio_s - sent.audio_s)
            if not self._waiting:
                self.clear()
            return sent.event
        assert self._hangup is not None, "the loop ended for it"
        return self._hangup


class Outbox:
    """Number events, keep them where a client can resume, and hand them to the one socket that is attached.

    Args:
        journal: Where events are kept; None where the client cannot come back.
        numbered: Whether the client sees the numbers.
    """

    def __init__(self, journal: Journal | None, *, numbered: bool) -> None:
        self.journal = journal
        self.channel = Channel()
        """Of the socket that is attached, or was last."""
        self._numbered = numbered
        self._seq = 0
        self._attached = False

    @property
    def seq(self) -> int:
        """Number of the last event."""
        return self._seq

    def put(self, event: Mapping[str, Any], now: float, *, audio_s: float = 0.0) -> None:
        """Number an event and let it wait for the client.

        Raises:
            SlowConsumer: Too much waits. The event has its number and is kept where events are kept.
        """
        self._seq += 1
        numbers: dict[str, Any] = {"event_id": f"event_{self._seq:06x}"}
        if self._numbered and event["type"] != "session.created":
            numbers["server_event_seq"] = self._seq
        nbytes = _OVERHEAD + size_of(event)
        sent = Sent(self._seq, {"type": event["type"], **numbers, **event}, nbytes, audio_s, now)
        if self.journal is not None:
            self.journal.add(sent)
        if not self._attached:
            return
        if not self.channel.has_room(nbytes, audio_s):
            raise SlowConsumer
        self.channel.add(sent)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Send the socket that is attached something that has no number and is not kept."""
        if self._attached:
            self.channel.add(Sent(0, dict(event), _OVERHEAD, 0.0, 0.0))

    def attach(self, replay: Sequence[Sent] = (), first: Mapping[str, Any] | None = None) -> Channel:
        """Begin to serve a new socket, with what it missed first, and return what it reads from.

        A socket that is there is told that it is replaced, and closed; what waits for it is in the journal.
        """
        if self._attached:
            self.channel.clear()
            self.tell({"type": "session.replaced"})
            self.channel.hang_up(REPLACED, "another connection has taken this session over")
        self.channel, self._attached = Channel(), True
        if first is not None:
            self.tell(first)
        for sent in replay:  # the journal has limits of its own, and a client that comes back cannot have read it yet
            self.channel.add(sent, counts=False)
        return self.channel

    def detach(self) -> None:
        """Stop to serve the socket."""
        self.channel.clear()
        self._attached = False

    def hang_up(self, code: int, reason: str) -> None:
        """Close the socket once it has what waits now."""
        self.channel.hang_up(code, reason)
