"""The sending end: keeps the payloads that were put until they are fetched or cleaned up, and decides where each one goes."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_connectors.shm.memory import SLOT_HEADER, Arena, create_memory, write_payload
from omni_connectors.shm.slots import SlotAllocator
from omni_connectors.shm.switchboard import Switchboard
from omni_connectors.shm.wire import Handle
from omni_core.connector import ConnectorEdge, ConnectorError, ConnectorFull, PayloadTooLarge, PeerGone
from omni_core.payload import EncodedPayload, Payload

ARENA_BYTES = 64 * 2**20
SLOT_LIMIT_BYTES = 8 * 2**20
"""Larger payloads get memory of their own, which the receiver maps without a copy and the arena is not filled by."""
ONE_SHOT_CAP_BYTES = 2 * 2**30
"""Limit of all memory outside the arena, and of one payload."""
ARENA_WAIT_S = 0.05
"""How long a small payload waits for room in the arena before it gets memory of its own."""


@dataclass(eq=False)
class _Entry:
    """One payload on its way."""

    request_id: str
    nbytes: int
    slot: int | None = None
    """Offset in the arena, if it has a place there."""
    outside: bool = False
    """Whether it counts as memory outside the arena."""
    memory: int | None = None
    """Descriptor of its own memory, once that is written."""
    ready: bool = False
    """Whether it can be fetched."""


class Sender:
    """Keep payloads for the receivers of one edge.

    `put` comes from one thread, `cleanup`, `health` and `close` perhaps from others, and the switchboard's thread tells what
    the receivers say; one lock guards the state, and its condition wakes a `put` that waits for room.
    """

    def __init__(self, edge: ConnectorEdge) -> None:
        self._edge = edge
        self._changed = threading.Condition()
        self._entries: dict[int, _Entry] = {}
        # A sender that takes the place of a dead one must not answer for handles of its predecessor.
        self._ids = itertools.count(1 + secrets.randbits(62))
        self._slots = SlotAllocator(ARENA_BYTES)
        self._outside_bytes = 0
        self._had_peers = False
        self._closed = False
        try:
            self._arena = Arena.create(ARENA_BYTES)
        except OSError as error:
            raise ConnectorError(
                f"there is no shared memory of {ARENA_BYTES >> 20} MiB for the edge: {error}",
                where=edge.name,
                hint="raise the memory limit of the container or the user",
            ) from error
        try:
            self._switchboard = Switchboard(edge, self._arena.fd, self)
        except BaseException:  # the arena is given back whatever went wrong; raised again
            self._arena.close()
            raise

    def put(self, request_id: str, payload: Payload, timeout_s: float) -> bytes:
        """Write a payload and return its handle.

        Raises:
            ConnectorFull, PayloadTooLarge, PeerGone: As named.
        """
        encoded = EncodedPayload(payload)
        if encoded.nbytes > ONE_SHOT_CAP_BYTES:
            raise PayloadTooLarge(
                f"a payload of {encoded.nbytes} bytes is larger than {ONE_SHOT_CAP_BYTES}", where=self._edge.name
            )
        payload_id = next(self._ids)
        entry = _Entry(request_id, encoded.nbytes)
        with self._changed:
            self._entries[payload_id] = entry
            try:
                self._find_place(payload_id, entry, timeout_s)
            except BaseException:  # nothing of a failed put may stay; raised again
                self._entries.pop(payload_id, None)
                raise
            if entry.slot is not None:
                self._arena.write(entry.slot, payload_id, encoded)
                entry.ready = True
        if entry.outside:
            self._write_outside(payload_id, entry, encoded)
        # A payload whose request was cleaned up meanwhile has a handle too; `get` will say that it is gone.
        return msgspec.msgpack.encode(Handle(self._edge.replica, payload_id, encoded.nbytes, entry.slot))

    def _find_place(self, payload_id: int, entry: _Entry, timeout_s: float) -> None:
        """Reserve a slot or the right to memory outside the arena; wait for either until the deadline."""
        now = time.monotonic()
        deadline = now + timeout_s
        leave_arena_at = min(deadline, now + ARENA_WAIT_S) if entry.nbytes <= SLOT_LIMIT_BYTES else now
        while payload_id in self._entries:
            self._check_open()
            if entry.nbytes <= SLOT_LIMIT_BYTES and self._take_slot(entry):
                return
            now = time.monotonic()
            if now >= leave_arena_at and self._outside_bytes + entry.nbytes <= ONE_SHOT_CAP_BYTES:
                self._outside_bytes += entry.nbytes
                entry.outside = True
                return
            if self._had_peers and not self._switchboard.peers:
                raise PeerGone("there is no room, and the receiving stage is gone", where=self._edge.name)
            if now >= deadline:
                others = len(self._entries) - 1
                raise ConnectorFull(
                    f"no room for a payload of {entry.nbytes} bytes within {timeout_s:g} s: {others} others were not fetched",
                    where=self._edge.name,
                    hint="the receiving stage is too slow or stands still",
                )
            self._changed.wait((leave_arena_at if now < leave_arena_at else deadline) - now)
        # Forgotten by a cleanup, which is no error, or by `close`.
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectorError("the connector is closed", where=self._edge.name)

    def _take_slot(self, entry: _Entry) -> bool:
        entry.slot = self._slots.take(SLOT_HEADER + entry.nbytes)
        if entry.slot is None and self._drop_consumed():
            entry.slot = self._slots.take(SLOT_HEADER + entry.nbytes)
        return entry.slot is not None

    def _write_outside(self, payload_id: int, entry: _Entry, encoded: EncodedPayload) -> None:
        """Write a payload into memory of its own, without the lock, since it may be large."""
        fd = -1
        try:
            fd = create_memory("omni-payload", entry.nbytes)
            write_payload(fd, encoded)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            with self._changed:
                if payload_id in self._entries:
                    self._drop(payload_id)
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise ConnectorFull(f"no memory for a payload of {entry.nbytes} bytes", where=self._edge.name) from error
            raise ConnectorError(f"a payload could not be written: {error}", where=self._edge.name) from error
        with self._changed:
            if payload_id in self._entries:
                entry.memory, entry.ready = fd, True
            else:
                os.close(fd)
                self._check_open()

    def cleanup(self, request_id: str) -> None:
        """Free every payload of a request."""
        with self._changed:
            for payload_id in [key for key, entry in self._entries.items() if entry.request_id == request_id]:
                self._drop(payload_id)
            self._changed.notify_all()

    def health(self) -> Mapping[str, Any]:
        """Return counts of payloads, bytes and connections."""
        with self._changed:
            self._drop_consumed()
            ready = [entry for entry in self._entries.values() if entry.ready]
            return {
                "in_flight": len(ready),
                "bytes_in_flight": sum(entry.nbytes for entry in ready),
                "arena_bytes": self._slots.size,
                "arena_taken_bytes": self._slots.taken_bytes,
                "outside_bytes": self._outside_bytes,
                "peers": self._switchboard.peers,
            }

    def close(self) -> None:
        """Free everything; a `put` that waits ends with ConnectorError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._switchboard.close()
        with self._changed:
            for payload_id in list(self._entries):
                self._drop(payload_id)
            self._arena.close()

    # What the switchboard's thread calls.

    def peer_came(self) -> None:
        """Note that there is a receiver."""
        self._had_peers = True

    def peer_went(self) -> None:
        """Wake a `put` that waits for room."""
        with self._changed:
            self._drop_consumed()
            self._changed.notify_all()

    def consumed(self, payload_id: int) -> None:
        """Free the slot of a payload that its receiver has copied."""
        with self._changed:
            entry = self._entries.get(payload_id)
            if entry is not None and entry.slot is not None and entry.ready:
                self._drop(payload_id)
                self._changed.notify_all()

    def memory_of(self, payload_id: int) -> int | None:
        """Hand over the memory of a payload outside the arena; the caller closes it. None if there is no such payload."""
        with self._changed:
            entry = self._entries.get(payload_id)
            if entry is None or entry.memory is None:
                return None
            fd, entry.memory = entry.memory, None
            self._drop(payload_id)
            self._changed.notify_all()
            return fd

    def _drop_consumed(self) -> bool:
        done = [
            payload_id
            for payload_id, entry in self._entries.items()
            if entry.slot is not None and entry.ready and self._arena.consumed(entry.slot, payload_id)
        ]
        for payload_id in done:
            self._drop(payload_id)
        return bool(done)

    def _drop(self, payload_id: int) -> None:
        """Forget a payload and free its place. What is being written is freed by its writer, which finds it forgotten."""
        entry = self._entries.pop(payload_id)
        if entry.slot is not None:
            self._arena.retract(entry.slot)
            self._slots.give_back(entry.slot)
            return
        if entry.memory is not None:
            os.close(entry.memory)
        if entry.outside:
            self._outside_bytes -= entry.nbytes
