"""Anonymous shared memory: an edge's arena with its slots, and memory that holds one large payload."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from omni_core.connector import ConnectorError, PayloadNotReady
from omni_core.payload import EncodedPayload

SLOT_HEADER = 64
"""Bytes in front of a slot's payload: word 0 is the payload's id, written by the sender; word 1 is the id of the payload
that was consumed, written by the receiver. The payload is there while word 0 is its id and word 1 is not."""
_ID, _CONSUMED = 0, 1


def create_memory(name: str, nbytes: int) -> int:
    """Return the file descriptor of fresh memory that nobody can shrink, which would kill its readers by SIGBUS.

    Raises:
        OSError: There is not so much memory.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def check_memory(fd: int, at_least: int) -> int:
    """Return the size of received memory.

    Raises:
        ConnectorError: It could shrink under its reader, or is smaller than `at_least`.
    """
    size = os.fstat(fd).st_size
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ConnectorError("the sender passed something that is no anonymous memory") from error
    if not seals & fcntl.F_SEAL_SHRINK or size < at_least:
        raise ConnectorError(f"the sender passed memory of {size} bytes that cannot be used")
    return size


def write_payload(fd: int, payload: EncodedPayload) -> None:
    """Write a payload to the start of memory. The interpreter lock is free meanwhile.

    Raises:
        OSError: There is not so much memory.
    """
    for offset, piece in payload.pieces():
        view, done = memoryview(piece), 0
        while done < view.nbytes:
            done += os.pwrite(fd, view[done:], offset + done)


def map_payload(fd: int, nbytes: int) -> memoryview:
    """Return a payload's own memory; it is freed with the last array that views it.

    Raises:
        ConnectorError: The memory is not of that size.
    """
    if check_memory(fd, nbytes) != nbytes:
        raise ConnectorError(f"the sender passed memory of another size than the {nbytes} bytes of its handle")
    return memoryview(mmap.mmap(fd, nbytes))


class Arena:
    """The memory of one edge, mapped into this process. Owns its file descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            self.size = check_memory(fd, SLOT_HEADER)
            self._map = mmap.mmap(fd, self.size)
        except (OSError, ConnectorError):
            os.close(fd)
            raise
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")

    @classmethod
    def create(cls, nbytes: int) -> Arena:
        """Return an arena whose memory is all there, so that no write to it can fail.

        Raises:
            OSError: There is not so much memory.
        """
        fd = create_memory("omni-arena", nbytes)
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    def write(self, offset: int, payload_id: int, payload: EncodedPayload) -> None:
        """Write a payload into the slot at `offset`; it can be read as soon as its id is there."""
        start = offset + SLOT_HEADER
        payload.write_into(self._bytes[start : start + payload.nbytes])
        self._words[offset // 8 + _ID] = payload_id

    def retract(self, offset: int) -> None:
        """Make the payload in the slot at `offset` unreadable."""
        self._words[offset // 8 + _ID] = 0

    def consumed(self, offset: int, payload_id: int) -> bool:
        """Return whether the receiver has marked this payload as consumed."""
        return self._words[offset // 8 + _CONSUMED] == payload_id

    def consume(self, offset: int, payload_id: int, nbytes: int) -> memoryview:
        """Copy a payload out and mark it as consumed.

        Raises:
            PayloadNotReady: It was consumed or retracted before, or is retracted meanwhile.
            ConnectorError: No slot can lie there.
        """
        start = offset + SLOT_HEADER
        if offset < 0 or offset % SLOT_HEADER or nbytes < 0 or start + nbytes > self.size:
            raise ConnectorError(f"the handle names bytes {start} to {start + nbytes} of an arena of {self.size}")
        word = offset // 8
        if self._words[word + _ID] != payload_id or self.consumed(offset, payload_id):
            raise PayloadNotReady(f"payload {payload_id} was fetched or cleaned up before")
        copy = np.empty(nbytes, np.uint8)
        copy[:] = np.frombuffer(self._bytes, np.uint8, nbytes, start)
        if self._words[word + _ID] != payload_id:
            raise PayloadNotReady(f"payload {payload_id} was cleaned up while it was read")
        self._words[word + _CONSUMED] = payload_id
        return copy.data

    def close(self) -> None:
        """Unmap the memory. May be called twice."""
        if self.fd >= 0:
            self._words.release()
            self._bytes.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1
