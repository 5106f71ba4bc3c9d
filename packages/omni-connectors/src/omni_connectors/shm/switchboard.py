"""The sender's side of the sockets: a thread that accepts receivers, passes them memory and hears what they consumed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import selectors
import socket
import threading
from typing import Protocol

from omni_connectors.shm import wire
from omni_core.connector import ConnectorEdge, ConnectorError

logger = logging.getLogger(__name__)

BACKLOG = 128
JOIN_S = 10.0
RETRY_S = 0.1


class Listener(Protocol):
    """What the switchboard tells; called from its thread."""

    def peer_came(self, connection: int) -> None:
        """Hear that a receiver connected."""

    def peer_went(self, connection: int) -> None:
        """Hear that a receiver is gone, and with it what it had taken."""

    def given_back(self) -> None:
        """Hear that a receiver has given a slot back."""

    def memory_of(self, area: int) -> int | None:
        """Return a descriptor of an area, which the switchboard then owns, or None if there is no such area."""


class Switchboard:
    """Serve the receivers of one edge until `close`."""

    def __init__(self, edge: ConnectorEdge, arena_fd: int, listener: Listener) -> None:
        self._edge = edge
        self._arena_fd = arena_fd
        self._listener = listener
        self._peers: dict[socket.socket, int] = {}
        self._numbers = itertools.count(1)
        self._server = _listen(edge)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._closing = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"shm-{edge.from_stage}-{edge.to_stage}", daemon=True)
        self._thread.start()

    @property
    def peers(self) -> int:
        """How many receivers are connected."""
        return len(self._peers)

    def close(self) -> None:
        """Stop the thread and close every connection. May be called twice."""
        if self._closed:
            return
        self._closed = self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            # Its descriptors stay open, since they must not be closed under a thread that uses them.
            logger.warning("the thread of connector %s did not end within %g s", self._edge.name, JOIN_S)
            return
        self._selector.close()
        os.close(self._wake)
        for sock in [self._server, *self._peers]:
            sock.close()
        self._peers.clear()
        try:
            os.unlink(os.path.join(self._edge.run_dir, wire.socket_name(self._edge, self._edge.replica)))
        except FileNotFoundError:
            return  # the run directory was removed before

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                try:
                    if key.fileobj is self._server:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._serve(key.fileobj)
                except Exception as error:  # noqa: BLE001 - one receiver's failure must not end the others' service
                    logger.warning("connector %s drops a receiver: %s", self._edge.name, error)
                    if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._server:
                        self._drop(key.fileobj)
                    else:
                        # Whoever could not be accepted (no descriptor is free) stays in the queue and is tried again.
                        select.select([self._wake], [], [], RETRY_S)

    def _accept(self) -> None:
        sock, _ = self._server.accept()
        connection = next(self._numbers)
        try:
            sock.setblocking(False)
            wire.check_peer(sock)
            # Known before it can take anything.
            self._listener.peer_came(connection)
            socket.send_fds(sock, [wire.encode_message(wire.Welcome(connection))], [self._arena_fd])
        except (OSError, ConnectorError):
            sock.close()
            self._listener.peer_went(connection)
            raise
        self._peers[sock] = connection
        self._selector.register(sock, selectors.EVENT_READ)

    def _serve(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(wire.MAX_MESSAGE)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._drop(sock)
            return
        message = wire.decode_message(data)
        if isinstance(message, wire.GivenBack):
            self._listener.given_back()
        elif isinstance(message, wire.Fetch):
            self._pass_memory(sock, message.area)
        else:
            raise ConnectorError(f"a receiver sent {type(message).__name__}")

    def tell_gone(self, area: int) -> None:
        """Tell every receiver that an area is gone; may be called from any thread. One that does not read keeps it."""
        for sock in list(self._peers):
            with contextlib.suppress(OSError):
                sock.send(wire.encode_message(wire.Gone(area)))

    def _pass_memory(self, sock: socket.socket, area: int) -> None:
        try:
            fd = self._listener.memory_of(area)
        except OSError as error:
            # No descriptor is free. It costs this payload alone: a receiver that is dropped loses what it still looks at.
            logger.warning("connector %s cannot pass memory: %s", self._edge.name, error)
            fd = None
        if fd is None:
            sock.send(wire.encode_message(wire.Gone(area)))
            return
        try:
            socket.send_fds(sock, [wire.encode_message(wire.Passed(area))], [fd])
        finally:
            os.close(fd)

    def _drop(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        connection = self._peers.pop(sock)
        sock.close()
        self._listener.peer_went(connection)


def _listen(edge: ConnectorEdge) -> socket.socket:
    """Return a listening socket at the edge's address, in the place of one that a dead predecessor left."""
    server = wire.new_socket()
    try:
        server.setblocking(False)
        with wire.socket_address(edge, edge.replica) as address:
            try:
                server.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                _remove_dead(address, edge)
                server.bind(address)
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        raise ConnectorError(f"cannot listen in {edge.run_dir}: {error}", where=edge.name) from error
    except ConnectorError:
        server.close()
        raise
    return server


def _remove_dead(address: str, edge: ConnectorEdge) -> None:
    with wire.new_socket() as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            os.unlink(address)
            return
    raise ConnectorError(
        f"another sender listens at {wire.socket_name(edge, edge.replica)}", where=edge.name, hint="one per edge and replica"
    )
