from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import pytest

from omni_core.engine import channel as channel_module
from omni_core.engine.channel import MAX_MESSAGE_BYTES, Channel, accept_one, connect
from omni_core.engine.messages import Abort, Push, Shutdown, ToHost
from omni_core.errors import DeadlineError, ServiceError

pytestmark = pytest.mark.anyio


def reading(data: bytes, *, ended: bool = True) -> Channel[Any]:
    """A channel whose peer has sent `data`."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if ended:
        reader.feed_eof()
    return Channel(reader, None, ToHost, "the peer")  # type: ignore[arg-type]


async def pair() -> tuple[Channel[Any], Channel[Any], asyncio.Server]:
    path = tempfile.mkdtemp() + "/c.sock"
    server, first = await accept_one(path, ToHost, "the client")
    client = await connect(path, ToHost, "the server")
    return await asyncio.wait_for(first, 5), client, server


async def test_messages_arrive_in_order_and_end_with_none() -> None:
    ours, theirs, server = await pair()
    sent = [Push("r", 0, number, b"h" * number, False) for number in range(50)]

    for message in sent:
        ours.post(message)
    await ours.close()
    received = []
    while (message := await theirs.receive()) is not None:
        received.append(message)

    assert received == sent
    await theirs.close()
    server.close()


@pytest.mark.parametrize("cut", [0, 2, 4, 6], ids=["nothing", "half a length", "length only", "half a message"])
async def test_stream_that_ends_anywhere_means_the_peer_is_gone(cut: int) -> None:
    whole = (10).to_bytes(4, "little") + b"0123456789"

    assert await reading(whole[:cut]).receive() is None


async def test_message_that_announces_too_many_bytes_is_refused_without_reading_them() -> None:
    broken = reading((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"), ended=False)

    with pytest.raises(ServiceError, match="the peer: a message announces"):
        await asyncio.wait_for(broken.receive(), 5)


@pytest.mark.parametrize(
    "data",
    [b"\xc1", b"\x81\xa4type\xa3Foo", b"\x93\x01\x02\x03", b"\x82\xa4type\xa4Call\xa9arguments\x81\xa1a" + b"\x91" * 100_000],
    ids=["no msgpack", "unknown tag", "no map", "nested too deeply"],
)
async def test_bytes_that_are_no_message_are_an_error(data: bytes) -> None:
    with pytest.raises(ServiceError, match="cannot be read"):
        await reading(len(data).to_bytes(4, "little") + data).receive()


async def test_message_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_BYTES", 100)
    ours, theirs, server = await pair()

    with pytest.raises(ServiceError, match="longer than 100"):
        ours.post(Push("r", 0, 0, b"x" * 200, False))
    ours.post(Abort("r"))

    assert await theirs.receive() == Abort("r")
    await ours.close()
    await theirs.close()
    server.close()


async def test_send_to_a_peer_that_does_not_read_ends_at_the_deadline() -> None:
    ours, theirs, server = await pair()
    theirs._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def send_much() -> None:
        for _ in range(50):
            await ours.send(Push("r", 0, 0, b"x" * (1 << 20), False), timeout_s=0.2)

    with pytest.raises(DeadlineError, match=r"the client: it did not read within 0\.2 s"):
        await send_much()

    await ours.close(0.1)
    await theirs.close(0.1)
    server.close()


async def test_post_leaves_a_bounded_amount_for_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_BUFFERED_BYTES", 1 << 20)
    ours, theirs, server = await pair()
    theirs._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def post_much() -> None:
        for _ in range(100):
            ours.post(Push("r", 0, 0, b"x" * (1 << 20), False))

    with pytest.raises(ServiceError, match="unread"):
        post_much()

    await ours.close(0.1)
    await theirs.close(0.1)
    server.close()


async def test_a_long_message_on_its_way_keeps_no_other_one_back() -> None:
    """Inputs of a request may be 128 MiB; the stage that reads them is not to be killed for those of a second one."""
    ours, theirs, server = await pair()

    ours.post(Push("long", 0, 0, bytes(70 << 20), False))
    ours.post(Push("long too", 0, 0, bytes(70 << 20), False))
    ours.post(Abort("short"))

    assert [getattr(await theirs.receive(), "request_id", None) for _ in range(3)] == ["long", "long too", "short"]
    await ours.close()
    await theirs.close()
    server.close()


async def test_post_on_a_closed_channel_is_dropped() -> None:
    ours, theirs, server = await pair()
    await ours.close()

    ours.post(Shutdown())

    assert await theirs.receive() is None
    await theirs.close()
    server.close()


async def test_second_connection_is_closed_at_once() -> None:
    path = tempfile.mkdtemp() + "/c.sock"
    server, first = await accept_one(path, ToHost, "the client")
    one = await connect(path, ToHost, "the server")
    await asyncio.wait_for(first, 5)

    other = await connect(path, ToHost, "the server")

    assert await asyncio.wait_for(other.receive(), 5) is None
    for channel in (one, other, first.result()):
        await channel.close()
    server.close()
