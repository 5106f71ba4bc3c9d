"""The receiving end: reads payloads out of the store and removes them there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from omni_connectors.mooncake.outbox import Handle, edge_prefix, part_keys, part_place
from omni_connectors.mooncake.store import NOT_COMPLETE, STAGING_BYTES, TRANSFER_FAILED, StoreClient, refuse
from omni_core.connector import ConnectorEdge, ConnectorError
from omni_core.payload import decode_payload

PAUSE_S = 0.002
_handles = msgspec.msgpack.Decoder(Handle)


class Inbox:
    """Take payloads of every replica of the sending stage."""

    def __init__(self, edge: ConnectorEdge, client: StoreClient) -> None:
        self._edge = edge
        self._client = client
        self._closed = False

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the payload of a handle.

        A handle leaves the sender when its payload is complete, so a key that the store does not know is not waited for.

        Raises:
            PayloadNotReady, PeerGone, StoreGone: As named.
        """
        deadline = time.monotonic() + timeout_s
        if self._closed:
            raise ConnectorError("the connector is closed", where=self._edge.name)
        place = self._place(handle)
        while True:
            found = self._client.call(lambda: self._read(place), deadline - time.monotonic())
            if not isinstance(found, int):
                return decode_payload(found)
            if found != NOT_COMPLETE or time.monotonic() + PAUSE_S > deadline:
                refuse(found, f"payload {place.key}", self._edge)
            time.sleep(PAUSE_S)

    def _place(self, handle: bytes) -> Handle:
        try:
            place = _handles.decode(handle)
        except msgspec.MsgspecError as error:
            raise ConnectorError(f"{len(handle)} bytes are no handle of MooncakeStoreConnector: {error}") from error
        run = place.key.removeprefix("omni/").partition("/")
        if not place.key.startswith("omni/") or not run[2].startswith(edge_prefix(self._edge)) or place.nbytes <= 0:
            raise ConnectorError(f"{place.key[:80]!r} is no key of this edge", where=self._edge.name)
        return place

    def _read(self, place: Handle) -> memoryview | int:
        """Return a payload's bytes, the caller's own, and remove its key; or return why not."""
        client, store, nbytes = self._client, self._client.store, place.nbytes
        keys = part_keys(place.key, nbytes)
        small = nbytes <= STAGING_BYTES
        with client.memory(nbytes, keep=not small) as memory:
            for part, key in enumerate(keys):
                start, length = part_place(part, nbytes)
                code = client.note(store.get_into(key, memory.ctypes.data + start, length))
                if code == TRANSFER_FAILED:
                    refuse(code, f"payload {key}", self._edge)
                if code < 0:
                    return int(code)
                if code != length:
                    raise ConnectorError(f"payload {key} has {code} bytes, not {length}", where=self._edge.name)
            found: np.ndarray[Any, Any] = memory.copy() if small else memory
        # Whoever removes the first key has fetched the payload; nobody else has. A read holds a lease of 10 s, hence the force.
        for key in keys:
            code = client.note(store.remove(key, True))
            if code != 0 and key == keys[0]:
                return int(code)
        return found.data

    def health(self) -> Mapping[str, Any]:
        """Return whether the store answers. Payloads in flight are counted by their sender."""
        return {"in_flight": 0, "bytes_in_flight": 0, "store_answers": self._client.reachable}

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True
