"""A channel: msgpack messages with a length in front, over an asyncio stream socket: a Unix path, or TCP between hosts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Generic, TypeVar

import msgspec

from omni_core.errors import DeadlineError, ServiceError

MAX_MESSAGE_BYTES = 256 << 20
"""No message is longer; a longer length is a broken stream."""
MAX_BUFFERED_BYTES = 4 * MAX_MESSAGE_BYTES
"""What `post` may leave unsent for a peer that does not read. A few of the longest messages are no sign of that: they take a
while on a slow line, and other requests go on meanwhile."""
SEND_TIMEOUT_S = 30.0

_LENGTH = 4
READ_AHEAD = 1 << 20
"""What a connection may hold that nobody has taken yet."""

T = TypeVar("T")


class Channel(Generic[T]):
    """One end of a connection that receives messages of the union `T` and sends any struct.

    Args:
        reader: Where messages come from.
        writer: Where messages go to.
        receives: The union of message types that may come.
        peer: Who is at the other end, for error messages.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receives: Any, peer: str) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()
        self.peer = peer

    def post(self, message: msgspec.Struct) -> None:
        """Send a message without waiting. A closed channel drops it, since its end is noticed by the reader.

        Raises:
            ServiceError: The message is too long, or the peer has left more than MAX_BUFFERED_BYTES unread.
        """
        if self._writer.is_closing():
            return
        data = self._encoder.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise ServiceError(f"a message of {len(data)} bytes is longer than {MAX_MESSAGE_BYTES}", where=self.peer)
        if self._writer.transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            raise ServiceError(f"it has left more than {MAX_BUFFERED_BYTES} bytes unread", where=self.peer)
        self._writer.write(len(data).to_bytes(_LENGTH, "little") + data)

    async def send(self, message: msgspec.Struct, timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Send a message and wait until the peer keeps up.

        Raises:
            DeadlineError: It did not within `timeout_s`.
            ConnectionError: The peer is gone.
            ServiceError: As `post`.
        """
        self.post(message)
        try:
            # Not `wait_for`, which in Python 3.11 can lose a cancellation.
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
        except TimeoutError:
            raise DeadlineError(f"it did not read within {timeout_s:g} s", where=self.peer) from None

    async def receive(self) -> T | None:
        """Return the next message, or None when the peer is gone.

        There is no deadline: silence is normal here, and a dead peer's socket ends.

        Raises:
            ServiceError: What came is no message.
        """
        try:
            size = int.from_bytes(await self._reader.readexactly(_LENGTH), "little")
            if size > MAX_MESSAGE_BYTES:
                raise ServiceError(f"a message announces {size} bytes, more than {MAX_MESSAGE_BYTES}", where=self.peer)
            data = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            # A host that is gone without a word ends a TCP connection with other errors than ConnectionError.
            return None
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ServiceError(f"a message cannot be read: {error}", where=self.peer) from error

    def abort(self) -> None:
        """Close at once; what is buffered is lost."""
        self._writer.transport.abort()

    async def close(self, timeout_s: float = 1.0) -> None:
        """Send what is buffered, at most for `timeout_s`, and close."""
        self._writer.close()
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(timeout_s):
                await self._writer.wait_closed()
        self._writer.transport.abort()


async def connect(path: str, receives: Any, peer: str, timeout_s: float = 10.0) -> Channel[Any]:
    """Connect to the Unix socket at `path`.

    Raises:
        DeadlineError: Nobody accepted within `timeout_s`.
        OSError: There is no such socket.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=READ_AHEAD)
    except TimeoutError:
        raise DeadlineError(f"no connection to {path} within {timeout_s:g} s", where=peer) from None
    return Channel(reader, writer, receives, peer)


async def accept_one(path: str, receives: Any, peer: str) -> tuple[asyncio.Server, asyncio.Future[Channel[Any]]]:
    """Listen at `path` and return the server with a future of the first connection; later ones are closed."""
    first: asyncio.Future[Channel[Any]] = asyncio.get_running_loop().create_future()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if first.done():
            writer.close()
        else:
            first.set_result(Channel(reader, writer, receives, peer))

    return await asyncio.start_unix_server(connected, path, limit=READ_AHEAD), first
