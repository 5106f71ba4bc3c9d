"""The TCP connection that carries one remote stage's messages: how it is made, and how the end of a host is noticed on it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from omni_core.engine.channel import READ_AHEAD, Channel


def tune(writer: asyncio.StreamWriter, silence_s: float) -> None:
    """Let the kernel end a connection whose other end acknowledges nothing for `silence_s`."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s / 2)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(silence_s / 4)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


async def connect_tcp(
    host: str, port: int, ticket: bytes, receives: Any, peer: str, *, own_address: str, silence_s: float
) -> Channel[Any]:
    """Connect and present the ticket.

    Args:
        host: Where the head is.
        port: Its port for stage messages.
        ticket: What the connection begins with.
        receives: The union of message types that may come.
        peer: Who is at the other end, for messages.
        own_address: Address of this host to connect from; empty leaves the choice to the kernel.
        silence_s: As for `tune`.

    Raises:
        OSError: There is no connection (TimeoutError is one).
    """
    local = (own_address, 0) if own_address else None
    async with asyncio.timeout(silence_s):
        reader, writer = await asyncio.open_connection(host, port, local_addr=local, limit=READ_AHEAD)
    tune(writer, silence_s)
    writer.write(ticket)
    return Channel(reader, writer, receives, peer)
