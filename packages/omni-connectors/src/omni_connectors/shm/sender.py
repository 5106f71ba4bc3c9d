"""The sending end: keeps the payloads that were put until they are fetched or cleaned up, and decides where each one goes."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_connectors.shm.areas import ARENA, Arena, LargeAreas
from omni_connectors.shm.memory import SLOT_HEADER, Area
from omni_connectors.shm.switchboard import Switchboard
from omni_connectors.shm.wire import Handle
from omni_core.connector import ConnectorEdge, ConnectorError, ConnectorFull, PayloadTooLarge, PeerGone
from omni_core.payload import EncodedPayload, Payload

ARENA_BYTES = 64 * 2**20
SLOT_LIMIT_BYTES = 8 * 2**20
"""Larger payloads have an area of their own each, so that a few of them do not fill the arena."""
LARGE_CAP_BYTES = 2 * 2**30
"""Limit of all memory outside the arena, and of one payload."""
IDLE_S = 10.0
"""How long an area for large payloads is kept when nothing is in it."""
ARENA_WAIT_S = 0.05
"""How long a small payload waits for room in the arena before it gets an area of its own."""
GRACE_S = 0.01
"""How long a slot rests behind a cleanup: until then a receiver that took its payload at that moment has been seen."""
LOOK_AGAIN_S = 0.01
"""How often a `put` that waits looks for slots that were given back, even if nobody told it."""
SWEEP = 4
"""How many of the oldest payloads each `put` looks at, so that slots are used again while they are warm."""


@dataclass(eq=False, slots=True)
class _Entry:
    """One payload on its way."""

    payload_id: int
    request_id: str
    nbytes: int
    number: int = ARENA
    """Number of its area."""
    area: Area | None = None
    offset: int = 0
    ready: bool = False
    """Whether it can be fetched."""
    retracted_at: float = 0.0
    """When it was cleaned up, if it was."""


class Sender:
    """Keep payloads for the receivers of one edge.

    `put` comes from one thread, `cleanup`, `health` and `close` perhaps from others, and the switchboard's thread tells what
    the receivers say; one lock guards the state, and its condition wakes a `put` that waits for room.
    """

    def __init__(self, edge: ConnectorEdge) -> None:
        self._edge = edge
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._entries: dict[int, _Entry] = {}
        """Payloads that can be fetched, or will be."""
        self._resting: deque[_Entry] = deque()
        """Payloads that were taken or cleaned up, whose slot may still be in use."""
        # A sender that takes the place of a dead one must not answer for handles of its predecessor.
        self._ids = itertools.count(1 + secrets.randbits(62))
        self._large = LargeAreas(LARGE_CAP_BYTES, IDLE_S)
        self._connections: set[int] = set()
        self._had_peers = False
        self._closed = False
        try:
            self._arena = Arena(ARENA_BYTES)
        except OSError as error:
            raise ConnectorError(
                f"there is no shared memory of {ARENA_BYTES >> 20} MiB for the edge: {error}",
                where=edge.name,
                hint="raise the memory limit of the container or the user",
            ) from error
        try:
            self._switchboard = Switchboard(edge, self._arena.area.fd, self)
        except BaseException:  # the arena is given back whatever went wrong; raised again
            self._arena.close()
            raise

    def put(self, request_id: str, payload: Payload, timeout_s: float) -> bytes:
        """Write a payload and return its handle.

        Raises:
            ConnectorFull, PayloadTooLarge, PeerGone: As named.
        """
        encoded = EncodedPayload(payload)
        if encoded.nbytes > LARGE_CAP_BYTES:
            raise PayloadTooLarge(
                f"a payload of {encoded.nbytes} bytes is larger than {LARGE_CAP_BYTES}", where=self._edge.name
            )
        entry = _Entry(next(self._ids), request_id, encoded.nbytes)
        with self._lock:
            self._check_open()
            self._look_at_oldest()
            self._entries[entry.payload_id] = entry
            try:
                size = self._find_place(entry, timeout_s)
            except BaseException:  # nothing of a failed put may stay; raised again
                self._entries.pop(entry.payload_id, None)
                raise
            if entry.area is not None and entry.number == ARENA:
                self._write_small(entry, encoded)
        if size or entry.number != ARENA:
            self._write_large(entry, size, encoded)
        # A payload whose request was cleaned up meanwhile has a handle too; `get` will say that it is gone.
        return self._handle(entry)

    def try_put(self, request_id: str, payload: Payload) -> bytes | None:
        """Write a payload into the arena and return its handle; None if there is no room for it just now.

        Raises:
            ConnectorError: The connector is closed.
        """
        encoded = EncodedPayload(payload)
        if encoded.nbytes > SLOT_LIMIT_BYTES or not self._lock.acquire(blocking=False):
            return None
        try:
            self._check_open()
            self._look_at_oldest()
            entry = _Entry(next(self._ids), request_id, encoded.nbytes)
            if not self._take_slot(entry):
                return None
            self._write_small(entry, encoded)
            self._entries[entry.payload_id] = entry
        finally:
            self._lock.release()
        return self._handle(entry)

    def _write_small(self, entry: _Entry, encoded: EncodedPayload) -> None:
        assert entry.area is not None
        entry.area.write(entry.offset, entry.payload_id, encoded)
        entry.ready = True

    def _handle(self, entry: _Entry) -> bytes:
        return msgspec.msgpack.encode(Handle(self._edge.replica, entry.payload_id, entry.nbytes, entry.number, entry.offset))

    def _find_place(self, entry: _Entry, timeout_s: float) -> int:
        """Find a slot or an area, or reserve the bytes of a new area and return them; wait for either until the deadline."""
        small = entry.nbytes <= SLOT_LIMIT_BYTES
        if small and self._take_slot(entry):
            self._check_open()
            return 0
        now = time.monotonic()
        deadline = now + timeout_s
        leave_arena_at = min(deadline, now + ARENA_WAIT_S) if small else now
        try:
            self._arena.area.want_news(True)
            while entry.payload_id in self._entries:
                self._check_open()
                self._look_at_all()
                if small and self._take_slot(entry):
                    return 0
                now = time.monotonic()
                if now >= leave_arena_at and (size := self._take_large(entry)) is not None:
                    return size
                if self._had_peers and not self._connections:
                    raise PeerGone("there is no room, and the receiving stage is gone", where=self._edge.name)
                if now >= deadline:
                    raise self._full(entry, timeout_s)
                self._changed.wait(min(LOOK_AGAIN_S, (leave_arena_at if now < leave_arena_at else deadline) - now))
        finally:
            if not self._closed:
                self._arena.area.want_news(False)
        # Forgotten by a cleanup, which is no error, or by `close`.
        self._check_open()
        return 0

    def _full(self, entry: _Entry, timeout_s: float) -> ConnectorFull:
        others = len(self._entries) - 1
        return ConnectorFull(
            f"no room for a payload of {entry.nbytes} bytes within {timeout_s:g} s: {others} others were not fetched, "
            f"{len(self._resting)} are in use by the receiving stage",
            where=self._edge.name,
            hint="the receiving stage is too slow or stands still",
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectorError("the connector is closed", where=self._edge.name)

    def _take_slot(self, entry: _Entry) -> bool:
        offset = self._arena.slots.take(SLOT_HEADER + entry.nbytes)
        if offset is None:
            return False
        entry.area, entry.number, entry.offset = self._arena.area, ARENA, offset
        return True

    def _take_large(self, entry: _Entry) -> int | None:
        """Give a payload an idle area and return 0, or reserve bytes for a new one and return them; None without room."""
        number = self._large.take_idle(entry.nbytes)
        if number is not None:
            entry.number, entry.area = number, self._large.get(number)
            return 0
        found = self._large.reserve(entry.nbytes)
        if found is None:
            return None
        for gone in found[1]:
            self._switchboard.tell_gone(gone)
        return found[0]

    def _write_large(self, entry: _Entry, size: int, encoded: EncodedPayload) -> None:
        """Write a payload into an area of its own, without the lock, since it may be large."""
        if size:
            try:
                area = Area.create(size, "omni-large", map_now=True)
            except OSError as error:
                with self._lock:
                    self._large.unreserve(size)
                    self._entries.pop(entry.payload_id, None)
                if error.errno in (errno.ENOSPC, errno.ENOMEM):
                    raise ConnectorFull(f"no memory for a payload of {entry.nbytes} bytes", where=self._edge.name) from error
                raise ConnectorError(f"there is no memory for a payload: {error}", where=self._edge.name) from error
            with self._lock:
                entry.number, entry.area = self._large.add(area), area
        assert entry.area is not None
        entry.area.write(0, entry.payload_id, encoded)
        with self._lock:
            entry.ready = True
            if entry.payload_id not in self._entries:
                self._free(entry)
                if self._closed:
                    self._large.close()
                self._check_open()

    def cleanup(self, request_id: str) -> None:
        """Free every payload of a request."""
        with self._lock:
            for entry in [entry for entry in self._entries.values() if entry.request_id == request_id]:
                self._forget(entry)
            self._changed.notify_all()

    def health(self) -> Mapping[str, Any]:
        """Return counts of payloads, bytes and connections."""
        with self._lock:
            if not self._closed:
                self._look_at_all()
                for number in self._large.drop_old():
                    self._switchboard.tell_gone(number)
            ready = [entry for entry in self._entries.values() if entry.ready]
            idle = self._large.idle_bytes
            return {
                "in_flight": len(ready),
                "bytes_in_flight": sum(entry.nbytes for entry in ready),
                "in_use_by_receivers": len(self._resting),
                "arena_bytes": self._arena.slots.size,
                "arena_taken_bytes": self._arena.slots.taken_bytes,
                "outside_bytes": self._large.total_bytes - idle,
                "idle_bytes": idle,
                "peers": len(self._connections),
            }

    def close(self) -> None:
        """Free everything; a `put` that waits ends with ConnectorError."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._switchboard.close()
        with self._lock:
            busy = [entry for entry in self._entries.values() if entry.area is not None and not entry.ready]
            for entry in self._entries.values():
                if entry.area is not None:
                    entry.area.retract(entry.offset)
            self._entries.clear()
            self._resting.clear()
            # What is being written closes the areas behind it.
            if not busy:
                self._large.close()
            self._arena.close()

    # What the switchboard's thread calls.

    def peer_came(self, connection: int) -> None:
        """Note that there is a receiver."""
        with self._lock:
            self._connections.add(connection)
            self._had_peers = True

    def peer_went(self, connection: int) -> None:
        """Free what a receiver had taken, and wake a `put` that waits for room."""
        with self._lock:
            self._connections.discard(connection)
            self.given_back()

    def given_back(self) -> None:
        """Free slots, and wake a `put` that waits for room."""
        with self._lock:
            if not self._closed:
                self._look_at_all()
            self._changed.notify_all()

    def memory_of(self, area: int) -> int | None:
        """Return a descriptor of an area that the caller closes; None if there is no such area."""
        with self._lock:
            found = self._large.get(area)
            return None if found is None or self._closed else os.dup(found.fd)

    # Where payloads are in their life: on their way, then resting, then gone. All with the lock.

    def _look_at_oldest(self) -> None:
        for entry in list(itertools.islice(self._entries.values(), SWEEP)):
            if entry.ready and not self._note_taken(entry):
                break
        if self._resting:
            for _ in range(min(SWEEP, len(self._resting))):
                entry = self._resting.popleft()
                if not self._free_if_unused(entry):
                    self._resting.append(entry)

    def _look_at_all(self) -> None:
        for entry in [entry for entry in self._entries.values() if entry.ready]:
            self._note_taken(entry)
        self._resting = deque(entry for entry in self._resting if not self._free_if_unused(entry))

    def _note_taken(self, entry: _Entry) -> bool:
        """Move a payload that was taken to those that rest, or free it if it was given back, too."""
        assert entry.area is not None
        holder = entry.area.holder(entry.offset, entry.payload_id)
        if holder is None:
            return False
        del self._entries[entry.payload_id]
        if holder in self._connections:
            self._resting.append(entry)
        else:
            self._free(entry)
        return True

    def _forget(self, entry: _Entry) -> None:
        """Let nobody take a payload. What is being written is freed by its writer, which finds it forgotten."""
        del self._entries[entry.payload_id]
        if not entry.ready:
            return
        assert entry.area is not None
        entry.area.retract(entry.offset)
        if self._had_peers:
            entry.retracted_at = time.monotonic()
            self._resting.append(entry)
        else:
            self._free(entry)

    def _free_if_unused(self, entry: _Entry) -> bool:
        assert entry.area is not None
        holder = entry.area.holder(entry.offset, entry.payload_id)
        unused = time.monotonic() > entry.retracted_at + GRACE_S if holder is None else holder not in self._connections
        if unused:
            self._free(entry)
        return unused

    def _free(self, entry: _Entry) -> None:
        assert entry.area is not None
        entry.area.retract(entry.offset)
        if entry.number == ARENA:
            self._arena.slots.give_back(entry.offset)
        else:
            self._large.give_back(entry.number)
