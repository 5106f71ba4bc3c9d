"""The receiving end: connects to a sender when its first handle arrives, and takes payloads out of its memory."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from omni_connectors.shm import wire
from omni_connectors.shm.memory import Arena, map_payload
from omni_core.connector import ConnectorEdge, ConnectorError, PayloadNotReady, PeerGone
from omni_core.payload import decode_payload

_handles = msgspec.msgpack.Decoder(wire.Handle)


class Receiver:
    """Take payloads from every replica of the sending stage. `get` comes from one thread, `close` perhaps from another."""

    def __init__(self, edge: ConnectorEdge) -> None:
        self._edge = edge
        self._lock = threading.Lock()
        self._links: dict[int, _Link] = {}
        self._closed = False

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the payload of a handle.

        Raises:
            PayloadNotReady, PeerGone: As named.
        """
        deadline = time.monotonic() + timeout_s
        try:
            place = _handles.decode(handle)
        except msgspec.MsgspecError as error:
            raise ConnectorError(f"{len(handle)} bytes are no handle of SharedMemoryConnector: {error}") from error
        with self._lock:
            if self._closed:
                raise ConnectorError("the connector is closed", where=self._edge.name)
            link = self._link(place.replica, deadline)
            if place.offset is not None:
                data = link.arena.consume(place.offset, place.payload_id, place.nbytes)
                link.tell_consumed(place.payload_id)
            else:
                data = link.fetch(place.payload_id, place.nbytes, deadline)
        return decode_payload(data)

    def _link(self, replica: int, deadline: float) -> _Link:
        link = self._links.get(replica)
        if link is not None and link.ended():
            # A sender that was started again listens at the same address.
            del self._links[replica]
            link.close()
            link = None
        if link is None:
            link = self._links[replica] = _Link(self._edge, replica, deadline)
        return link

    def health(self) -> Mapping[str, Any]:
        """Return how many senders are connected. Payloads in flight are counted by their sender."""
        return {"in_flight": 0, "bytes_in_flight": 0, "peers": len(self._links)}

    def close(self) -> None:
        """Close every connection; a `get` that waits ends with PeerGone."""
        self._closed = True
        for link in list(self._links.values()):
            link.wake()
        with self._lock:
            for link in self._links.values():
                link.close()
            self._links.clear()


class _Link:
    """One connection to a sender, and its arena."""

    def __init__(self, edge: ConnectorEdge, replica: int, deadline: float) -> None:
        self._peer = f"replica {replica} of stage {edge.from_stage}"
        self._sock = wire.new_socket()
        try:
            self._sock.settimeout(_remaining(deadline))
            with wire.socket_address(edge, replica) as address:
                self._sock.connect(address)
            # From here on every wait is a poll, so that a look at the socket never waits.
            self._sock.setblocking(False)
            wire.check_peer(self._sock)
            message, fd = self._receive(deadline)
            if fd is None or not isinstance(message, wire.ArenaIs):
                if fd is not None:
                    os.close(fd)
                raise ConnectorError(f"{self._peer} did not pass its memory")
            self.arena = Arena(fd)
        except (FileNotFoundError, ConnectionError) as error:
            self._sock.close()
            raise PeerGone(f"{self._peer} does not listen: {error}", where=edge.name) from error
        except (TimeoutError, BlockingIOError) as error:
            self._sock.close()
            raise PayloadNotReady(f"{self._peer} did not answer in time", where=edge.name) from error
        except BaseException:  # the socket is closed whatever ended it; raised again
            self._sock.close()
            raise

    def ended(self) -> bool:
        """Return whether the sender is gone."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def tell_consumed(self, payload_id: int) -> None:
        """Wake the sender. It looks at the slots itself when it needs room, so a message that cannot go is no loss."""
        try:
            self._sock.send(wire.encode_message(wire.Consumed(payload_id)))
        except (BlockingIOError, ConnectionError):
            return

    def fetch(self, payload_id: int, nbytes: int, deadline: float) -> memoryview:
        """Return the memory of a large payload."""
        try:
            _wait(self._sock, select.POLLOUT, deadline)
            self._sock.send(wire.encode_message(wire.Fetch(payload_id)))
            while True:
                message, fd = self._receive(deadline)
                try:
                    if isinstance(message, wire.Passed) and message.payload_id == payload_id and fd is not None:
                        return map_payload(fd, nbytes)
                    if isinstance(message, wire.Gone) and message.payload_id == payload_id:
                        raise PayloadNotReady(f"payload {payload_id} was fetched or cleaned up before")
                    # Otherwise it answers an earlier call, which gave up at its deadline.
                finally:
                    if fd is not None:
                        os.close(fd)
        except ConnectionError as error:
            raise PeerGone(f"{self._peer} is gone: {error}") from error
        except (TimeoutError, BlockingIOError) as error:
            raise PayloadNotReady(f"{self._peer} did not pass payload {payload_id} in time") from error

    def _receive(self, deadline: float) -> tuple[wire.Message, int | None]:
        _wait(self._sock, select.POLLIN, deadline)
        data, fd = wire.receive_with_descriptor(self._sock)
        try:
            if not data:
                raise ConnectionResetError("the connection ended")
            return wire.decode_message(data), fd
        except (ConnectionResetError, ConnectorError):
            if fd is not None:
                os.close(fd)
            raise

    def wake(self) -> None:
        """End what waits on the connection."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself

    def close(self) -> None:
        """Close the connection and unmap the arena."""
        self._sock.close()
        self.arena.close()


def _wait(sock: socket.socket, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(sock, event)
    if not poll.poll(_remaining(deadline) * 1000):
        raise TimeoutError("the deadline is over")


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
