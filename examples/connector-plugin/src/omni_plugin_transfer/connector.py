"""The class that deploy files name, and its receiving end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from omni_core.connector import Connector, ConnectorEdge, ConnectorError, PayloadNotReady, PeerGone, Role
from omni_core.errors import DeadlineError
from omni_core.payload import Payload, decode_payload
from omni_core.worker_thread import WorkerThread
from omni_plugin_transfer.control import Line
from omni_plugin_transfer.engine import process_engine
from omni_plugin_transfer.options import TransferEngineOptions
from omni_plugin_transfer.sender import Handle, Sender

_handles = msgspec.msgpack.Decoder(Handle)


class Receiver:
    """Claim payloads, and read them out of their senders' memory."""

    def __init__(self, edge: ConnectorEdge, options: TransferEngineOptions) -> None:
        self._edge = edge
        self._engine = process_engine(options)
        self._lines: dict[tuple[str, int], Line] = {}
        # The engine takes seconds to notice a dead sender; whoever waits for it has a deadline.
        self._worker = WorkerThread(f"TransferEngine of edge {edge.from_stage} to {edge.to_stage}")
        self._closed = False

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the payload of a handle.

        Raises:
            PayloadNotReady, PeerGone: As named.
        """
        deadline = time.monotonic() + timeout_s
        if self._closed:
            raise ConnectorError("the connector is closed", where=self._edge.name)
        place = self._place(handle)
        line = self._claim(place, deadline)
        memory = np.empty(place.nbytes, np.uint8)
        try:
            code = self._worker.call(lambda: self._read(place, memory), deadline - time.monotonic())
        except DeadlineError as error:
            raise PayloadNotReady(error.message, where=self._edge.name) from None
        if code != 0:
            raise PeerGone(f"the memory of {place.session} cannot be read (code {code})", where=self._edge.name)
        line.done(place.number)
        return decode_payload(memory.data)

    def _place(self, handle: bytes) -> Handle:
        try:
            place = _handles.decode(handle)
        except msgspec.MsgspecError as error:
            raise ConnectorError(f"{len(handle)} bytes are no handle of TransferEngineConnector: {error}") from error
        if place.edge != (self._edge.from_stage, self._edge.to_stage) or place.run != self._edge.run_id:
            raise ConnectorError("the handle is one of another edge", where=self._edge.name)
        return place

    def _claim(self, place: Handle, deadline: float) -> Line:
        line = self._lines.get(place.desk)
        try:
            if line is None:
                line = self._lines[place.desk] = Line(place.desk, deadline - time.monotonic())
            ours = line.claim(place.number, deadline - time.monotonic())
        except OSError as error:
            # An answer that comes late would be taken for the next one's.
            if (broken := self._lines.pop(place.desk, None)) is not None:
                broken.close()
            if isinstance(error, TimeoutError):
                raise PayloadNotReady(f"{place.desk} did not answer in time", where=self._edge.name) from error
            raise PeerGone(f"{place.desk} is gone: {error}", where=self._edge.name) from error
        if not ours:
            raise PayloadNotReady(f"payload {place.number} was fetched or cleaned up before", where=self._edge.name)
        return line

    def _read(self, place: Handle, memory: np.ndarray[Any, Any]) -> int:
        engine, address = self._engine, memory.ctypes.data
        code = engine.register_memory(address, memory.nbytes)
        if code == 0:
            code = engine.transfer_sync_read(place.session, address, place.place, place.nbytes)
            engine.unregister_memory(address)
        return int(code)

    def health(self) -> Mapping[str, Any]:
        """Return how many senders are connected. Payloads on their way are counted by their sender."""
        return {"in_flight": 0, "bytes_in_flight": 0, "peers": len(self._lines)}

    def close(self) -> None:
        """End the connections."""
        self._closed = True
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._worker.close(5.0)


class TransferEngineConnector(Connector):
    """Carry payloads from memory to memory: the sender keeps them, the receiver reads them."""

    def __init__(self, edge: ConnectorEdge, options: Mapping[str, Any]) -> None:
        super().__init__(edge, options)
        here = {"host": edge.address} if edge.address else {}
        known = TransferEngineOptions.model_validate({**here, **options})
        self._sender = Sender(edge, known) if edge.role is Role.SENDER else None
        self._receiver = Receiver(edge, known) if edge.role is Role.RECEIVER else None

    def put(self, request_id: str, sequence: int, payload: Payload, timeout_s: float) -> bytes:
        """Keep a payload in registered memory and return its handle."""
        assert self._sender is not None, "put is called at the sending end"
        return self._sender.put(request_id, payload, timeout_s)

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Read the payload of a handle."""
        assert self._receiver is not None, "get is called at the receiving end"
        return self._receiver.get(handle, timeout_s)

    def cleanup(self, request_id: str) -> None:
        """Free a request's payloads that were not fetched."""
        if self._sender is not None:
            self._sender.cleanup(request_id)

    def health(self) -> Mapping[str, Any]:
        """Return counts of payloads and bytes."""
        end = self._sender or self._receiver
        assert end is not None
        return end.health()

    def close(self) -> None:
        """Free everything."""
        end = self._sender or self._receiver
        assert end is not None
        end.close()
