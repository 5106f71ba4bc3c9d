"""The receiving end: connects to a sender when its first handle arrives, and takes payloads in its memory.

A payload's arrays are views of its slot, which is given back when the last of them is gone; a small one is copied at once.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec

from omni_connectors.shm import wire
from omni_connectors.shm.areas import ARENA
from omni_connectors.shm.memory import Area
from omni_core.connector import ConnectorEdge, ConnectorError, PayloadNotReady, PeerGone
from omni_core.payload import decode_payload

COPY_LIMIT_BYTES = 2**16
"""Payloads up to this size are copied: that costs less than to watch over their views, and keeps no slot in use."""
_handles = msgspec.msgpack.Decoder(wire.Handle)


_outliving: set[_Link] = set()
"""Closed links whose areas are viewed; nothing else may keep them."""


class Receiver:
    """Take payloads from every replica of the sending stage.

    `get` comes from one thread, `try_get` and `close` perhaps from another.
    """

    def __init__(self, edge: ConnectorEdge) -> None:
        self._edge = edge
        self._lock = threading.Lock()
        self._links: dict[int, _Link] = {}
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the payload of a handle.

        Raises:
            PayloadNotReady, PeerGone: As named.
        """
        deadline = time.monotonic() + timeout_s
        place = _decode_handle(handle)
        with self._lock:
            self._check_open()
            link = self._link(place.replica, deadline)
            data = link.take(place, deadline)
        return decode_payload(data)

    def try_get(self, handle: bytes) -> dict[str, Any] | None:
        """Return the payload of a handle if its sender and its area are known, else None.

        Raises:
            PayloadNotReady: As `get`.
        """
        place = _decode_handle(handle)
        if not self._lock.acquire(blocking=False):
            return None
        try:
            self._check_open()
            self._look_at(place.replica)
            link = self._links.get(place.replica)
            if link is None or not link.knows(place.area):
                return None
            data = link.take(place, 0.0)
        finally:
            self._lock.release()
        return decode_payload(data)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectorError("the connector is closed", where=self._edge.name)

    def _link(self, replica: int, deadline: float) -> _Link:
        self._look_at(replica)
        # A sender that was started again listens at the same address.
        link = self._links.get(replica)
        if link is None:
            link = self._links[replica] = _Link(self._edge, replica, deadline, self._wake)
        return link

    def _look_at(self, replica: int) -> None:
        """Give up a link whose sender is gone, and areas that a sender has given up; called with the lock."""
        link = self._links.get(replica)
        if link is not None and link.ended():
            del self._links[replica]
            link.close()

    def health(self) -> Mapping[str, Any]:
        """Return how many senders are connected. Payloads in flight are counted by their sender."""
        # An end that gets no handles for a while keeps no memory of its senders either.
        if self._lock.acquire(blocking=False):
            try:
                for replica in list(self._links):
                    self._look_at(replica)
            finally:
                self._lock.release()
        views = sum(link.views for link in list(self._links.values()))
        return {"in_flight": 0, "bytes_in_flight": 0, "in_use": views, "peers": len(self._links)}

    def close(self) -> None:
        """Close every connection; a `get` that waits ends with PeerGone."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._wake, 1)
        with self._lock:
            for link in self._links.values():
                link.close()
            self._links.clear()
            os.close(self._wake)


class _Link:
    """One connection to a sender, and the areas that it has passed.

    It outlives its receiver while arrays view its areas: its end would tell the sender that their slots are free.
    """

    def __init__(self, edge: ConnectorEdge, replica: int, deadline: float, wake: int) -> None:
        self._wake = wake
        self._peer = f"replica {replica} of stage {edge.from_stage}"
        self._sock = wire.new_socket()
        # Asked before every payload: a poll that finds nothing is cheaper than a read that fails.
        self._news = select.poll()
        self._news.register(self._sock, select.POLLIN)
        try:
            self._sock.settimeout(_remaining(deadline))
            with wire.socket_address(edge, replica) as address:
                self._sock.connect(address)
            # From here on every wait is a poll, so that a look at the socket never waits.
            self._sock.setblocking(False)
            wire.check_peer(self._sock)
            message, fd = self._receive(deadline)
            if fd is None or not isinstance(message, wire.Welcome):
                if fd is not None:
                    os.close(fd)
                raise ConnectorError(f"{self._peer} did not pass its memory")
            self._connection = message.connection
            self._areas = {ARENA: Area(fd)}
            self._areas[ARENA].close_descriptor()
            self._views: dict[int, weakref.ref[Any]] = {}
            self._closing = False
        except (FileNotFoundError, ConnectionError) as error:
            self._sock.close()
            raise PeerGone(f"{self._peer} does not listen: {error}", where=edge.name) from error
        except (TimeoutError, BlockingIOError) as error:
            self._sock.close()
            raise PayloadNotReady(f"{self._peer} did not answer in time", where=edge.name) from error
        except BaseException:  # the socket is closed whatever ended it; raised again
            self._sock.close()
            raise

    @property
    def views(self) -> int:
        """How many payloads are viewed by arrays."""
        return len(self._views)

    def ended(self) -> bool:
        """Return whether the sender is gone; take note of areas that it gave up."""
        if not self._news.poll(0):
            return False
        try:
            while data := self._sock.recv(wire.MAX_MESSAGE):
                message = wire.decode_message(data)
                if isinstance(message, wire.Gone) and message.area != ARENA and message.area in self._areas:
                    self._areas.pop(message.area).close()
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True

    def knows(self, area: int) -> bool:
        """Return whether this end has an area's memory."""
        return area in self._areas

    def take(self, place: wire.Handle, deadline: float) -> bytearray | memoryview:
        """Return the bytes of a payload: a copy, or a view of its slot."""
        area = self._areas.get(place.area) or self._fetch(place.area, deadline)
        payload_id, offset, nbytes = place.payload_id, place.offset, place.nbytes
        area.take(offset, payload_id, nbytes, self._connection)
        if nbytes <= COPY_LIMIT_BYTES:
            copy = area.copy(offset, nbytes)
            self._give_back(area, offset, payload_id)
            return copy
        view = area.view(offset, nbytes)

        def given_up(_: object) -> None:
            # Comes in whatever thread drops the last array, perhaps in the middle of a call of this link: it takes no lock.
            self._give_back(area, offset, payload_id)
            del self._views[payload_id]
            if self._closing and not self._views:
                self._end()

        self._views[payload_id] = weakref.ref(view, given_up)
        return view.data

    def _give_back(self, area: Area, offset: int, payload_id: int) -> None:
        if area.give_back(offset, payload_id):
            try:
                self._sock.send(wire.encode_message(wire.GivenBack()))
            except OSError:
                return  # the sender looks for itself, or is gone

    def _fetch(self, number: int, deadline: float) -> Area:
        """Return an area that is new to this end."""
        try:
            self._wait(select.POLLOUT, deadline)
            self._sock.send(wire.encode_message(wire.Fetch(number)))
            while True:
                message, fd = self._receive(deadline)
                if isinstance(message, wire.Passed) and fd is not None:
                    # Perhaps it answers an earlier call, which gave up at its deadline.
                    area = Area(fd)
                    area.close_descriptor()
                    self._areas[message.area] = area
                    if message.area == number:
                        return area
                    continue
                if fd is not None:
                    os.close(fd)
                if isinstance(message, wire.Gone) and message.area == number:
                    raise PayloadNotReady(f"area {number} of {self._peer} is gone: its payload was cleaned up before")
                if isinstance(message, wire.Gone) and message.area in self._areas:
                    self._areas.pop(message.area).close()
        except ConnectionError as error:
            raise PeerGone(f"{self._peer} is gone: {error}") from error
        except (TimeoutError, BlockingIOError) as error:
            raise PayloadNotReady(f"{self._peer} did not pass area {number} in time") from error

    def _receive(self, deadline: float) -> tuple[wire.Message, int | None]:
        self._wait(select.POLLIN, deadline)
        data, fd = wire.receive_with_descriptor(self._sock)
        try:
            if not data:
                raise ConnectionResetError("the connection ended")
            return wire.decode_message(data), fd
        except (ConnectionResetError, ConnectorError):
            if fd is not None:
                os.close(fd)
            raise

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._sock, event)
        poll.register(self._wake, select.POLLIN)
        ready = dict(poll.poll(_remaining(deadline) * 1000))
        if self._wake in ready:
            raise ConnectionAbortedError("the connector was closed")
        if not ready:
            raise TimeoutError("the deadline is over")

    def close(self) -> None:
        """Close the connection and unmap the areas, or leave that to the last array that views one."""
        self._closing = True
        if self._views:
            _outliving.add(self)
        else:
            self._end()

    def _end(self) -> None:
        self._sock.close()
        for area in self._areas.values():
            area.close()
        self._areas.clear()
        _outliving.discard(self)


def _decode_handle(handle: bytes) -> wire.Handle:
    try:
        return _handles.decode(handle)
    except msgspec.MsgspecError as error:
        raise ConnectorError(f"{len(handle)} bytes are no handle of SharedMemoryConnector: {error}") from error


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
