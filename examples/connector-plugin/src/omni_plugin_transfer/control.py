"""What the two ends say to each other over TCP: a receiver claims a payload, reads it and says that it is done.

A claim is what makes a hand-over happen once, and the end of a connection is how a dead receiver's claims are known.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Protocol

_REQUEST = struct.Struct("=BQ")
"""What, and the payload's number."""
CLAIM, DONE = 1, 2
YOURS, GONE = b"\x01", b"\x00"


class Listener(Protocol):
    """What the desk asks and tells; called from its threads."""

    def claim(self, number: int, connection: int) -> bool:
        """Give a payload to a receiver; return False if it is not there."""

    def done(self, number: int) -> None:
        """Hear that a payload was read."""

    def gone(self, connection: int) -> None:
        """Hear that a receiver is gone."""


class Desk:
    """Serve the receivers of one sender, each in a thread."""

    def __init__(self, host: str, listener: Listener) -> None:
        self._listener = listener
        self._server = socket.create_server((host, 0))
        self.port: int = self._server.getsockname()[1]
        self._connections: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._accepting = threading.Thread(target=self._accept, name="transfer-desk", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        number = 0
        while not self._closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            number += 1
            self._connections[number] = connection
            thread = threading.Thread(target=self._serve, args=(number, connection), name=f"transfer-{number}", daemon=True)
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionError), connection:
            while len(data := connection.recv(_REQUEST.size, socket.MSG_WAITALL)) == _REQUEST.size:
                what, payload = _REQUEST.unpack(data)
                if what == CLAIM:
                    connection.sendall(YOURS if self._listener.claim(payload, number) else GONE)
                elif what == DONE:
                    self._listener.done(payload)
                else:
                    break
        self._connections.pop(number, None)
        self._listener.gone(number)

    def close(self) -> None:
        """End all threads. May be called twice."""
        if self._closed:
            return
        self._closed = True
        for sock in (self._server, *list(self._connections.values())):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in (self._accepting, *self._threads):
            thread.join(10.0)


class Line:
    """A receiver's connection to a sender's desk."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self._socket = socket.create_connection(address, max(0.001, timeout_s))

    def claim(self, number: int, timeout_s: float) -> bool:
        """Ask for a payload; return whether it is ours.

        Raises:
            TimeoutError: There was no answer.
            ConnectionError: The sender is gone.
        """
        self._socket.settimeout(max(0.001, timeout_s))
        self._socket.sendall(_REQUEST.pack(CLAIM, number))
        answer = self._socket.recv(1)
        if not answer:
            raise ConnectionResetError("the connection ended")
        return answer == YOURS

    def done(self, number: int) -> None:
        """Say that a payload was read."""
        with contextlib.suppress(OSError):  # a sender that is gone has nothing to free
            self._socket.sendall(_REQUEST.pack(DONE, number))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()
