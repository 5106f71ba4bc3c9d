"""The sending end: writes payloads into the store, and takes back what nobody fetches any more."""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_connectors.mooncake.store import FULL, NO_MASTER, NOT_FOUND, TRANSFER_FAILED, StoreClient, refuse
from omni_core.connector import ConnectorEdge, ConnectorError, ConnectorFull, PayloadTooLarge, StoreGone
from omni_core.payload import EncodedPayload, Payload

CLEANUP_WAIT_S = 0.5
"""How long a cleanup waits for the store; what it has to do is done in any case, perhaps later."""
LOOK_EVERY_S = 0.05
"""How often the store is asked which payloads were fetched: nobody tells."""
LOOK_EVERY_PUTS = 256
PART_BYTES = 64 * 2**20
"""Larger payloads are put in parts: the library gives up a single transfer that takes a minute."""
ONE_TRY_S = 0.1
"""A put tries once, however short its time is."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.05
CLOSE_WAIT_S = 2.0


class Handle(msgspec.Struct, array_like=True, frozen=True):
    """Where a payload is; what travels with the control message."""

    key: str
    nbytes: int


@dataclass(eq=False)
class _Entry:
    """One payload on its way."""

    request_id: str
    nbytes: int
    parts: int = 0
    """How many of its parts are in the store."""
    written: bool = False


def part_keys(key: str, nbytes: int) -> list[str]:
    """Return the keys of a payload's parts; one of several parts ends with its number."""
    count = -(-nbytes // PART_BYTES)
    return [key] if count == 1 else [f"{key}.{part}" for part in range(count)]


def part_place(part: int, nbytes: int) -> tuple[int, int]:
    """Return where a part begins in a payload, and its bytes."""
    return part * PART_BYTES, min(PART_BYTES, nbytes - part * PART_BYTES)


def edge_prefix(edge: ConnectorEdge) -> str:
    """Return what every key of an edge begins with, behind the run."""
    return f"{edge.from_stage}-{edge.to_stage}/"


class Outbox:
    """Keep payloads in the store until they are fetched or cleaned up.

    One lock guards the state; the store is called in the client's thread, and without the lock.
    """

    def __init__(self, edge: ConnectorEdge, client: StoreClient, room: int) -> None:
        self._edge = edge
        self._client = client
        self._room = room
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._garbage: set[str] = set()
        """Keys to be removed."""
        self._numbers = itertools.count()
        self._closed = False
        self._sweep: Future[None] | None = None
        self._look: Future[None] | None = None
        self._looked_at = 0.0
        mine = f"omni/{edge.run_id}/{edge_prefix(edge)}{edge.replica}/"
        # A sender that takes the place of a dead one must not meet its keys: the store keeps the bytes of the first put.
        self._prefix = f"{mine}{secrets.token_hex(6)}/"
        client.worker.start(lambda: client.store.remove_by_regex(f"^{re.escape(mine)}", True))

    def put(self, request_id: str, payload: Payload, timeout_s: float) -> bytes:
        """Write a payload and return its handle.

        Raises:
            ConnectorFull, PayloadTooLarge, StoreGone: As named.
        """
        deadline = time.monotonic() + timeout_s
        encoded = EncodedPayload(payload)
        if encoded.nbytes > self._room:
            raise PayloadTooLarge(
                f"a payload of {encoded.nbytes} bytes is larger than the {self._room} bytes lent to the store",
                where=self._edge.name,
                hint="raise `segment` in the connector's `extra`",
            )
        number = next(self._numbers)
        # Ids may be of any length and hold anything; the digest is there for people who look at the store.
        digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        key = f"{self._prefix}{digest}/{number}"
        with self._changed:
            self._check_open()
            self._entries[key] = _Entry(request_id, encoded.nbytes)
        try:
            self._write(key, encoded, deadline, timeout_s)
        except BaseException:  # nothing of a failed put may stay; raised again
            self._forget([key])
            raise
        if number % LOOK_EVERY_PUTS == LOOK_EVERY_PUTS - 1:
            self._look_for_fetched()
        return msgspec.msgpack.encode(Handle(key, encoded.nbytes))

    def _write(self, key: str, encoded: EncodedPayload, deadline: float, timeout_s: float) -> None:
        """Write until there is room. A payload whose request was cleaned up meanwhile is not written, or removed again."""
        pause, code = FIRST_PAUSE_S, 0
        while True:
            try:
                code = self._client.call(lambda: self._try_to_write(key, encoded), max(ONE_TRY_S, deadline - time.monotonic()))
            except StoreGone:
                # No time was left for another try of a store that answers.
                if code == FULL and self._client.reachable:
                    raise self._full(encoded.nbytes, timeout_s) from None
                raise
            if code == 0:
                return
            if code != FULL:
                refuse(code, f"a payload of {encoded.nbytes} bytes cannot be put", self._edge)
            with self._changed:
                self._check_open()
                if key not in self._entries:
                    return
                if time.monotonic() + pause >= deadline:
                    raise self._full(encoded.nbytes, timeout_s)
                self._changed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _full(self, nbytes: int, timeout_s: float) -> ConnectorFull:
        waiting = len(self._entries) - 1
        return ConnectorFull(
            f"no room for a payload of {nbytes} bytes within {timeout_s:g} s: {waiting} were not fetched",
            where=self._edge.name,
            hint="the receiving stage is too slow, or `segment` is too small",
        )

    def _try_to_write(self, key: str, encoded: EncodedPayload) -> int:
        with self._changed:
            entry = self._entries.get(key)
        if entry is None:
            return 0
        client, code, keys = self._client, 0, part_keys(key, encoded.nbytes)
        with client.memory(encoded.nbytes, keep=False) as memory:
            encoded.write_into(memory.data)
            while code == 0 and entry.parts < len(keys):
                start, length = part_place(entry.parts, encoded.nbytes)
                place = memory.ctypes.data + start
                code = int(client.note(client.store.put_from(keys[entry.parts], place, length, client.placement)))
                entry.parts += code == 0
            if code == TRANSFER_FAILED:
                # Raised here, so that the memory is kept, which the library may still read.
                refuse(code, f"a payload of {encoded.nbytes} bytes cannot be put", self._edge)
        with self._changed:
            entry.written = code == 0
            if key not in self._entries:
                self._garbage.update(keys[: entry.parts])
        if code == 0 and self._garbage:
            self._remove_garbage()
        return code

    def cleanup(self, request_id: str) -> None:
        """Remove every payload of a request; wait for the store a moment at most, and not at all while it is gone."""
        with self._changed:
            keys = [key for key, entry in self._entries.items() if entry.request_id == request_id]
        if keys:
            self._forget(keys)

    def _forget(self, keys: list[str]) -> None:
        with self._changed:
            for key in keys:
                self._throw_away(key)
            self._changed.notify_all()
            if self._closed:
                return
            sweep = self._client.worker.start(self._remove_garbage)
        if self._client.reachable:
            wait_for_futures([sweep], CLEANUP_WAIT_S)

    def _throw_away(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._garbage.update(part_keys(key, entry.nbytes))

    def _remove_garbage(self) -> None:
        """Remove what is to be removed; what the store did not answer for is tried again behind the next write or cleanup."""
        with self._changed:
            keys = list(self._garbage)
        if not keys:
            return
        codes = self._client.store.batch_remove(keys, True)
        self._client.note(NO_MASTER if NO_MASTER in codes else 0)
        done = {key for key, code in zip(keys, codes, strict=True) if code in (0, NOT_FOUND)}
        with self._changed:
            self._garbage -= done

    def health(self) -> Mapping[str, Any]:
        """Return counts of payloads and bytes, and whether the store answers; ask the store behind the caller's back."""
        self._look_for_fetched()
        with self._changed:
            written = [entry for entry in self._entries.values() if entry.written]
            return {
                "in_flight": len(written),
                "bytes_in_flight": sum(entry.nbytes for entry in written),
                "to_be_removed": len(self._garbage),
                "store_answers": self._client.reachable,
            }

    def _look_for_fetched(self) -> None:
        with self._changed:
            busy = self._look is not None and not self._look.done()
            if self._closed or busy or not self._entries or time.monotonic() < self._looked_at + LOOK_EVERY_S:
                return
            self._looked_at = time.monotonic()
            self._look = self._client.worker.start(self._drop_fetched)

    def _drop_fetched(self) -> None:
        with self._changed:
            keys = [key for key, entry in self._entries.items() if entry.written]
        if not keys:
            return
        # Whoever fetches a payload removes its first part first.
        with self._changed:
            firsts = [part_keys(key, self._entries[key].nbytes)[0] if key in self._entries else key for key in keys]
        found = self._client.store.batch_is_exist(firsts)
        self._client.note(NO_MASTER if NO_MASTER in found else 0)
        with self._changed:
            for key, there in zip(keys, found, strict=True):
                if there == 0:
                    self._entries.pop(key, None)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectorError("the connector is closed", where=self._edge.name)

    def close(self) -> None:
        """Remove every key of this end; a `put` that waits ends with ConnectorError. May be called twice."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for key in list(self._entries):
                self._throw_away(key)
            self._changed.notify_all()
            last = self._client.worker.start(self._remove_garbage)
        wait_for_futures([last], CLOSE_WAIT_S)
