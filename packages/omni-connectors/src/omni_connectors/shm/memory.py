"""Anonymous shared memory with slots: the arena of an edge, and memory for one large payload at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from typing import Any

import numpy as np

from omni_core.connector import ConnectorError, PayloadNotReady
from omni_core.payload import EncodedPayload

AREA_HEADER = 64
"""Bytes in front of an area's slots. Word 0: whether the sender waits for room and wants to hear of freed slots."""
SLOT_HEADER = 64
"""Bytes in front of a slot's payload: four words, each written by one side only.

The payload's id, by the sender, once the payload is there. Then by the receiver: the id of the payload that it took, the number
of its connection, and the id of the payload that it gave back. A payload is there while the first is its id; its slot is in use
while the second is its id and the last is not.
"""
_ID, _TAKEN, _TAKER, _GIVEN_BACK = range(4)
GIVEN_BACK = 0
"""No connection has this number."""
_COPY_WITHOUT_LOCK_BYTES = 65536
HUGE_PAGE_BYTES = 2 * 2**20
SHMEM_ENABLED = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
MADV_POPULATE_WRITE = 23
"""Linux's number, which Python's mmap does not name."""


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


def _allocate(fd: int) -> None:
    try:
        os.posix_fallocate(fd, 0, os.fstat(fd).st_size)
    except OSError:
        os.close(fd)
        raise


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


def _huge_pages_on_advice() -> bool:
    try:
        with open(SHMEM_ENABLED) as file:
            return "[advise]" in file.read()
    except OSError:
        return False


class Area:
    """Shared memory with slots, mapped into this process. Offsets are those of slots, which begin behind the area's header."""

    def __init__(self, fd: int) -> None:
        try:
            self.size = check_memory(fd, AREA_HEADER + SLOT_HEADER) - AREA_HEADER
            self._map = mmap.mmap(fd, AREA_HEADER + self.size)
            if self.size >= HUGE_PAGE_BYTES:
                with contextlib.suppress(OSError):  # a kernel that has no huge pages at all
                    self._map.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, ConnectorError):
            os.close(fd)
            raise
        self.fd = fd
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")

    @classmethod
    def create(cls, nbytes: int, name: str = "omni-arena", map_now: bool = False) -> Area:
        """Return an area whose memory is all there, so that no write to it can fail.

        Args:
            nbytes: Bytes for slots.
            name: Name for whoever looks at the process.
            map_now: Map all pages at once, for memory that is written from end to end: one by one, as they are touched,
                costs three times as much.

        Raises:
            OSError: There is not so much memory.
        """
        fd = create_memory(name, AREA_HEADER + nbytes)
        # Huge pages must be asked for through a mapping: what comes from `posix_fallocate` on advice is small.
        huge = nbytes >= HUGE_PAGE_BYTES and _huge_pages_on_advice()
        if not huge:
            _allocate(fd)
        area = cls(fd)
        if huge or map_now:
            try:
                area._map_pages()
            except OSError:
                area.close()
                raise
        return area

    def _map_pages(self) -> None:
        try:
            self._map.madvise(MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:  # that is a kernel before 5.14
                raise OSError(errno.ENOMEM, "there is not so much memory") from error
            os.posix_fallocate(self.fd, 0, AREA_HEADER + self.size)

    # The sender's side.

    def write(self, offset: int, payload_id: int, payload: EncodedPayload) -> None:
        """Write a payload into the slot at `offset`; it can be taken as soon as its id is there."""
        start = AREA_HEADER + offset + SLOT_HEADER
        for place, piece in payload.pieces():
            begin, end = start + place, start + place + len(piece)
            if len(piece) >= _COPY_WITHOUT_LOCK_BYTES:
                # numpy lets other threads run meanwhile, a memoryview does not.
                np.copyto(np.frombuffer(self._bytes, np.uint8, len(piece), begin), np.frombuffer(piece, np.uint8))
            else:
                self._bytes[begin:end] = piece
        self._words[(AREA_HEADER + offset) // 8 + _ID] = payload_id

    def retract(self, offset: int) -> None:
        """Let nobody take the payload in the slot at `offset` any more."""
        self._words[(AREA_HEADER + offset) // 8 + _ID] = 0

    def holder(self, offset: int, payload_id: int) -> int | None:
        """Return the number of the connection whose receiver has this payload, GIVEN_BACK if it had it, or None."""
        word = (AREA_HEADER + offset) // 8
        words = self._words
        if words[word + _GIVEN_BACK] == payload_id:
            return GIVEN_BACK
        return words[word + _TAKER] if words[word + _TAKEN] == payload_id else None

    def want_news(self, wanted: bool) -> None:
        """Say whether the sender wants to hear of slots that are given back."""
        self._words[0] = int(wanted)

    # The receiver's side.

    def take(self, offset: int, payload_id: int, nbytes: int, connection: int) -> None:
        """Mark a payload as this receiver's until it gives it back; only then may it look at it.

        Raises:
            PayloadNotReady: It was taken or cleaned up before.
            ConnectorError: No slot can lie there.
        """
        start = AREA_HEADER + offset + SLOT_HEADER
        if offset < 0 or offset % SLOT_HEADER or nbytes < 0 or offset + SLOT_HEADER + nbytes > self.size:
            raise ConnectorError(f"the handle names bytes {start} to {start + nbytes} of an area of {self.size}")
        word = (AREA_HEADER + offset) // 8
        words = self._words
        if words[word + _ID] != payload_id or words[word + _TAKEN] == payload_id:
            raise PayloadNotReady(f"payload {payload_id} was fetched or cleaned up before")
        words[word + _TAKER] = connection
        words[word + _TAKEN] = payload_id
        # The sender retracts first and looks for takers a moment later: one of the two sees the other.
        if words[word + _ID] != payload_id:
            words[word + _GIVEN_BACK] = payload_id
            raise PayloadNotReady(f"payload {payload_id} was cleaned up while it was taken")

    def view(self, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the bytes of a payload that was taken, in their place."""
        return np.frombuffer(self._map, np.uint8, nbytes, AREA_HEADER + offset + SLOT_HEADER)

    def copy(self, offset: int, nbytes: int) -> bytearray:
        """Return a copy of the bytes of a payload that was taken."""
        start = AREA_HEADER + offset + SLOT_HEADER
        return bytearray(self._bytes[start : start + nbytes])

    def give_back(self, offset: int, payload_id: int) -> bool:
        """Give a slot back; return whether the sender waits for that."""
        self._words[(AREA_HEADER + offset) // 8 + _GIVEN_BACK] = payload_id
        return self._words[0] != 0

    def close_descriptor(self) -> None:
        """Close the descriptor, which the mapping does not need."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Unmap the memory, or leave that to the last array that views it. May be called twice."""
        self.close_descriptor()
        try:
            self._words.release()
            self._bytes.release()
            self._map.close()
        except BufferError:
            return  # an array still views it, and unmaps it with its own end
