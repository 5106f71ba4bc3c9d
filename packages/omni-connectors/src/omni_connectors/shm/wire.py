"""What the two ends say to each other: handles, and messages on a SOCK_SEQPACKET socket that can carry one descriptor."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from omni_core.connector import ConnectorEdge, ConnectorError

MAX_MESSAGE = 256


class Handle(msgspec.Struct, array_like=True, frozen=True):
    """Where a payload is; what travels with the control message."""

    replica: int
    """The sender's replica, which has a socket of its own."""
    payload_id: int
    nbytes: int
    area: int
    """Number of the sender's area that it is in; 0 is the arena."""
    offset: int
    """Offset of its slot there."""


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """Sender: here is the arena (with its descriptor); the first message on a connection."""

    connection: int
    """Number by which the receiver marks what it takes."""


class GivenBack(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Receiver: a slot was given back. A hint: the mark in the slot is what counts."""


class Fetch(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Receiver: pass me the memory of this area."""

    area: int


class Passed(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Sender: here is the memory of this area (with its descriptor)."""

    area: int


class Gone(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Sender: there is no such area any more; the answer to Fetch, and told to everybody who has it."""

    area: int


Message = Welcome | GivenBack | Fetch | Passed | Gone

_decoder = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Return a message as bytes."""
    return msgspec.msgpack.encode(message)


def decode_message(data: bytes) -> Message:
    """Return the message in `data`.

    Raises:
        ConnectorError: It is none.
    """
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ConnectorError(f"a message on a connector's socket is not understood: {error}") from error


def receive_with_descriptor(sock: socket.socket) -> tuple[bytes, int | None]:
    """Return one message's bytes, empty at the end of the connection, and its descriptor, which the caller owns."""
    data, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE, 1)
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds[0] if fds else None


def new_socket() -> socket.socket:
    """Return a local socket that keeps messages apart and notices the peer's end at once."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextmanager
def socket_address(edge: ConnectorEdge, replica: int) -> Iterator[str]:
    """Yield the address of a sender's socket; valid inside the block.

    It goes through a descriptor of the run directory, since an address has room for 107 bytes and paths can be longer. The
    path itself works from every network namespace, which an abstract address does not.
    """
    folder = os.open(edge.run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{socket_name(edge, replica)}"
    finally:
        os.close(folder)


def socket_name(edge: ConnectorEdge, replica: int) -> str:
    """Return the name of a sender's socket in the run directory."""
    return f"shm-{edge.from_stage}-{edge.to_stage}-{replica}.sock"


def check_peer(sock: socket.socket) -> None:
    """Check that the process at the other end belongs to the same user.

    Raises:
        ConnectorError: It does not.
    """
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if uid != os.geteuid():
        raise ConnectorError(f"process {pid} of user {uid} is at the other end of a connector's socket")
