"""The sending end: keeps each payload in registered memory until a receiver has read it, or nobody wants it any more."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from omni_core.connector import ConnectorEdge, ConnectorError, ConnectorFull, PayloadTooLarge
from omni_core.payload import EncodedPayload, Payload
from omni_plugin_transfer.control import Desk
from omni_plugin_transfer.engine import process_engine, session_name
from omni_plugin_transfer.options import TransferEngineOptions


class Handle(msgspec.Struct, array_like=True, frozen=True):
    """Where a payload is."""

    run: str
    edge: tuple[int, int]
    session: str
    """Name of the sender's engine."""
    desk: tuple[str, int]
    number: int
    place: int
    """Address in the sender's memory."""
    nbytes: int


@dataclass(eq=False)
class _Entry:
    request_id: str
    memory: np.ndarray[Any, Any]
    claimed_by: int | None = None


class Sender:
    """Keep the payloads of one edge. One lock guards the state; `put` waits on its condition for room."""

    def __init__(self, edge: ConnectorEdge, options: TransferEngineOptions) -> None:
        self._edge = edge
        self._options = options
        self._engine = process_engine(options)
        self._changed = threading.Condition()
        self._entries: dict[int, _Entry] = {}
        self._bytes = 0
        # A sender that takes the place of a dead one must not answer for its numbers.
        self._numbers = itertools.count(secrets.randbits(62))
        self._closed = False
        self._desk = Desk(options.host, self)

    def put(self, request_id: str, payload: Payload, timeout_s: float) -> bytes:
        """Keep a payload and return its handle.

        Raises:
            ConnectorFull, PayloadTooLarge: As named.
        """
        encoded = EncodedPayload(payload)
        nbytes = encoded.nbytes
        if nbytes > self._options.room:
            raise PayloadTooLarge(f"a payload of {nbytes} bytes is larger than `room`", where=self._edge.name, hint="raise it")
        number = next(self._numbers)
        with self._changed:
            entry = self._entries[number] = _Entry(request_id, np.empty(0, np.uint8))
            try:
                self._wait_for_room(number, nbytes, time.monotonic() + timeout_s)
            except ConnectorError:
                self._entries.pop(number, None)
                raise
            if number not in self._entries:
                # Cleaned up while it waited; the handle leads to nothing.
                return self._handle(number, 0, nbytes)
            entry.memory = np.empty(nbytes, np.uint8)
            self._bytes += nbytes
            encoded.write_into(entry.memory.data)
            code = self._engine.register_memory(entry.memory.ctypes.data, nbytes)
            if code != 0:
                del self._entries[number]
                self._bytes -= nbytes
                raise ConnectorError(f"{nbytes} bytes cannot be registered (code {code})", where=self._edge.name)
            return self._handle(number, entry.memory.ctypes.data, nbytes)

    def _handle(self, number: int, place: int, nbytes: int) -> bytes:
        edge, options = self._edge, self._options
        session = session_name(self._engine, options)
        desk = (options.host, self._desk.port)
        return msgspec.msgpack.encode(
            Handle(edge.run_id, (edge.from_stage, edge.to_stage), session, desk, number, place, nbytes)
        )

    def _wait_for_room(self, number: int, nbytes: int, deadline: float) -> None:
        while True:
            if self._closed:
                raise ConnectorError("the connector is closed", where=self._edge.name)
            if number not in self._entries or self._bytes + nbytes <= self._options.room:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise ConnectorFull(
                    f"no room for {nbytes} bytes: {len(self._entries) - 1} payloads wait", where=self._edge.name
                )
            self._changed.wait(left)

    def cleanup(self, request_id: str) -> None:
        """Free a request's payloads, but for those that a receiver is reading."""
        with self._changed:
            self._free([n for n, entry in self._entries.items() if entry.request_id == request_id and entry.claimed_by is None])

    def health(self) -> Mapping[str, Any]:
        """Return how many payloads wait to be fetched, and their bytes."""
        with self._changed:
            sizes = [
                entry.memory.nbytes for entry in self._entries.values() if entry.claimed_by is None and entry.memory.nbytes
            ]
            return {"in_flight": len(sizes), "bytes_in_flight": sum(sizes)}

    def close(self) -> None:
        """Free everything."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._desk.close()
        with self._changed:
            self._free(list(self._entries))

    # What the desk's threads call.

    def claim(self, number: int, connection: int) -> bool:
        """Give a payload to a receiver."""
        with self._changed:
            entry = self._entries.get(number)
            if entry is None or entry.claimed_by is not None or not entry.memory.nbytes:
                return False
            entry.claimed_by = connection
            return True

    def done(self, number: int) -> None:
        """Free a payload that was read."""
        with self._changed:
            self._free([number] if number in self._entries else [])

    def gone(self, connection: int) -> None:
        """Free what a dead receiver was reading."""
        with self._changed:
            self._free([number for number, entry in self._entries.items() if entry.claimed_by == connection])

    def _free(self, numbers: list[int]) -> None:
        for number in numbers:
            memory = self._entries.pop(number).memory
            if memory.nbytes:
                self._engine.unregister_memory(memory.ctypes.data)
                self._bytes -= memory.nbytes
        self._changed.notify_all()
