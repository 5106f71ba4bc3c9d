"""Registration at the head, message by message: what a worker is told, and why it is refused. No stage runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq.asyncio

from omni_core import __version__
from omni_core.engine.options import EngineOptions
from omni_core.engine.remote import head as head_module
from omni_core.engine.remote import join as join_module
from omni_core.engine.remote import messages
from omni_core.engine.remote.head import Head
from omni_core.engine.remote.join import Link, join
from omni_core.engine.remote.messages import Challenge, Hello, Refused, Register, ToWorker, Welcome, prove
from omni_core.engine.remote.settings import HeadAddress, HeadOptions, WorkerOptions
from omni_core.errors import ConfigError, DeadlineError
from omni_core.stage import ResolvedPipeline
from omni_core.testing.hosts import FACTS, TOKEN, reserved_port
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio


class Desk:
    """A head that listens, and a worker's end of its port."""

    def __init__(self, head: Head, address: HeadAddress, pools: dict[int, Any]) -> None:
        self.head = head
        self.address = address
        self.pools = pools
        self.context = zmq.asyncio.Context()

    async def ask(self, *questions: Any) -> list[Any]:
        """Return the answers to messages, bytes or structs, sent one after the other."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://{self.address.host}:{self.address.port}")
        answers = []
        async with asyncio.timeout(10):
            for question in questions:
                await dealer.send(question if isinstance(question, bytes) else msgspec.msgpack.encode(question))
                answers.append(msgspec.msgpack.decode(await dealer.recv(), type=ToWorker))
        dealer.close()
        return answers

    async def register(self, token: str = TOKEN, **fields: Any) -> Any:
        """Return the answer to a registration."""
        nonce = secrets.token_bytes(16)
        dealer = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://{self.address.host}:{self.address.port}")
        async with asyncio.timeout(10):
            await dealer.send(msgspec.msgpack.encode(Hello(nonce)))
            challenge = msgspec.msgpack.decode(await dealer.recv(), type=Challenge)
            await dealer.send(msgspec.msgpack.encode(prove(self.offer(**fields), token, nonce + challenge.nonce)))
            answer = msgspec.msgpack.decode(await dealer.recv(), type=ToWorker)
        dealer.close()
        return answer

    def offer(self, **fields: Any) -> Register:
        values = {"stage_id": 1, "replica": -1, "facts": FACTS, "files": ["b.yaml"], "host": "b", "address": "127.0.0.1"}
        return Register(b"", pid=7, **{"host_mark": self.head._mark, **values, **fields})


@contextlib.asynccontextmanager
async def desk(
    pipeline: ResolvedPipeline | None = None, own: frozenset[int] = frozenset({0}), token: str = TOKEN
) -> AsyncIterator[Desk]:
    with reserved_port() as port:
        async with desk_at(HeadAddress("127.0.0.1", port, token), pipeline or fake_pipeline(), own) as found:
            yield found


@contextlib.asynccontextmanager
async def desk_at(address: HeadAddress, pipeline: ResolvedPipeline, own: frozenset[int]) -> AsyncIterator[Desk]:
    head = Head(pipeline, HeadOptions(own, address), FACTS, lambda stage_id: f"start-stage {stage_id}")
    await head.open()
    pools = {
        stage.stage_id: head.pool(stage, EngineOptions(), lambda *_: None, lambda *_: None, lambda: None)
        for stage in pipeline.stages
        if head.is_remote(stage.stage_id)
    }
    found = Desk(head, address, pools)
    try:
        yield found
    finally:
        found.context.destroy(linger=0)
        for pool in pools.values():
            await pool.stop()
        await head.close()


async def test_worker_is_welcome_with_a_place_and_a_ticket() -> None:
    """SB-07."""
    async with desk() as found:
        answer = await found.register()

        assert isinstance(answer, Welcome)
        assert answer.replica == 0
        assert found.pools[1].seats[0].worker.host == "b"


async def test_other_version_is_refused_with_both_versions(caplog: pytest.LogCaptureFixture) -> None:
    """SB-04: version skew is no riddle, on either side."""
    number = messages.PROTOCOL + 1
    later = msgspec.msgpack.encode({"type": "Hello", "protocol": number, "version": "9.9", "nonce": b"", "new": 1})
    async with desk() as found:
        (answer,) = await found.ask(later)

    assert isinstance(answer, Refused)
    assert answer.final
    assert f"protocol {number} of Omni 9.9, not protocol {messages.PROTOCOL}" in answer.message
    assert f"protocol {number} of Omni 9.9" in caplog.text


HELLO = {"type": "Hello", "protocol": messages.PROTOCOL, "version": __version__}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1\xc1",
        msgspec.msgpack.encode({"type": "Hello"}),
        msgspec.msgpack.encode(HELLO)[:-1] + b"\xa5nonce" + b"\x91" * 100_000,
        msgspec.msgpack.encode({**HELLO, "nonce": bytes(900_000)}),
        msgspec.msgpack.encode({**HELLO, "nonce": b""}),
    ],
    ids=["empty", "noise", "part", "deep", "long nonce", "no nonce"],
)
async def test_message_that_cannot_be_read_is_answered_and_ends_nothing(data: bytes) -> None:
    """SB-07: a worker that speaks nonsense hears so at once."""
    async with desk() as found:
        (answer,) = await found.ask(data)
        assert found.head._nonces == {}  # what anybody can send takes no room
        after = await found.register()

    assert isinstance(answer, Refused)
    assert isinstance(after, Welcome)


async def test_nobody_writes_lines_of_their_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """SB-10: what is logged of a stranger is one line, and no long one."""
    async with desk() as found:
        answers = [
            await found.register(token="another token", host="b\nERROR all is lost"),
            *await found.ask(msgspec.msgpack.encode({"type": "Hello", "protocol": 2, "version": "9\nERROR all is lost"})),
            *await found.ask(msgspec.msgpack.encode({"type": "Hello", "protocol": 2, "version": "9" * 500_000})),
        ]

    assert all(isinstance(answer, Refused) for answer in answers)
    assert "all is lost" not in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


@pytest.mark.parametrize(("ours", "theirs"), [(TOKEN, "another token"), (TOKEN, ""), ("", TOKEN)])
async def test_wrong_token_is_refused_on_both_sides(ours: str, theirs: str, caplog: pytest.LogCaptureFixture) -> None:
    """SB-10."""
    async with desk(token=ours) as found:
        answer = await found.register(token=theirs)

        assert isinstance(answer, Refused)
        assert "token is not the head's" in answer.message
        assert found.pools[1].missing
    assert "stage 1 on b (127.0.0.1)" in caplog.text
    assert "token is not the head's" in caplog.text


async def test_proof_cannot_be_used_twice() -> None:
    """SB-10."""
    async with desk() as found:
        nonce = b"n" * 16
        hello, again = Hello(nonce), found.offer()
        challenge, _ = await found.ask(hello, hello)
        message = prove(again, TOKEN, nonce + challenge.nonce)

        (answer,) = await found.ask(message)

    assert isinstance(answer, Refused)
    assert "does not know this handshake" in answer.message


async def test_other_deployment_is_refused_with_the_keys_that_differ() -> None:
    """SB-04."""
    async with desk() as found:
        answer = await found.register(facts={**FACTS, "deploy file.stages.1.max_num_seqs": "x"})

    assert isinstance(answer, Refused)
    assert "differs from the head's in deploy file.stages.1.max_num_seqs" in answer.message
    assert "--deploy-config" in answer.hint
    assert "b.yaml" in answer.hint


@pytest.mark.parametrize(("stage_id", "why"), [(0, "the head runs it itself"), (7, "there is no such stage")])
async def test_stage_that_nobody_wants_is_refused(stage_id: int, why: str) -> None:
    """SB-03."""
    async with desk() as found:
        answer = await found.register(stage_id=stage_id)

    assert isinstance(answer, Refused)
    assert why in answer.message
    assert answer.hint == "wanted are 1 (vocoder)"


async def test_further_workers_get_further_replicas_and_free_seats_are_taken_first() -> None:
    """SB-07: auto-assignment; SB-08: a second worker joins the pool."""
    async with desk(fake_pipeline(replicas={1: 2})) as found:
        numbers = [(await found.register()).replica for _ in range(3)]
        found.pools[1].seats[1].process.kill("gone")
        asked_for_its_old_one = await found.register(replica=1)

    assert numbers == [0, 1, 2]
    assert asked_for_its_old_one.replica == 1


async def test_worker_that_comes_back_before_it_is_missed_gets_its_seat_again() -> None:
    """In another one it would have to load its stage again."""
    async with desk(fake_pipeline(replicas={1: 2})) as found:
        for life in ("a", "b"):
            await found.register(life=life)
        before = [seat.process for seat in found.pools[1].seats]

        again = await found.register(life="b", replica=1)

        assert again.replica == 1
        assert before[1].reason == "its worker lost the connection"
        assert [seat.process is process for seat, process in zip(found.pools[1].seats, before, strict=True)] == [True, False]


async def test_edge_that_cannot_cross_hosts_is_refused_with_the_way_out() -> None:
    """Both stages must be on one host, or their connector must be able to cross."""
    async with desk() as found:
        answer = await found.register(host_mark="another machine")

    assert isinstance(answer, Refused)
    assert "the edge from stage 0 to stage 1 uses connector 'folder', which works within one host" in answer.message
    assert "name a connector for this edge that can cross hosts" in answer.hint


async def test_workers_of_one_other_host_may_use_what_cannot_cross() -> None:
    async with desk(own=frozenset()) as found:
        first = await found.register(stage_id=0, host_mark="machine b")
        second = await found.register(stage_id=1, host_mark="machine b")
        third = await found.register(stage_id=1, host_mark="machine c")

    assert isinstance(first, Welcome)
    assert isinstance(second, Welcome)
    assert isinstance(third, Refused)


async def test_connector_that_can_cross_hosts_is_not_refused() -> None:
    async with desk() as found:
        found.head._cross_host[found.pools[1].stage.inputs[0].target] = True

        assert isinstance(await found.register(host_mark="another machine"), Welcome)


async def test_connection_without_a_ticket_is_closed() -> None:
    """SB-10: the port for stage messages is no way round the token."""
    async with desk() as found:
        welcome = await found.register()
        reader, writer = await asyncio.open_connection("127.0.0.1", welcome.port)
        writer.write(secrets.token_bytes(32))

        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        assert found.pools[1].seats[0].process._channel is None
        writer.close()


async def test_connections_without_a_ticket_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """SB-10: whoever opens many of them does not use up the head's descriptors."""
    monkeypatch.setattr(head_module, "MAX_STRANGERS", 2)
    async with desk() as found:
        port = (await found.register()).port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await async_wait_until(lambda: len(found.head._strangers) == 2, "the connections")

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        for _, other in (*idle, (reader, writer)):
            other.close()
        await async_wait_until(lambda: not found.head._strangers, "their end")

        (await join_at(found)).channel.abort()


async def test_connection_without_a_ticket_ends_with_the_head() -> None:
    async with desk() as found:
        reader, writer = await asyncio.open_connection("127.0.0.1", (await found.register()).port)
        await async_wait_until(lambda: found.head._strangers, "the connection")

        await found.head.close()

        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_seat_of_a_worker_that_never_connects_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "ATTACH_TIMEOUT_S", 0.05)
    async with desk() as found:
        await found.register()

        await async_wait_until(lambda: found.pools[1].missing, "the seat to be free")
        assert "did not connect within" in found.pools[1].seats[0].process.reason
        assert (await found.register()).replica == 0


async def test_worker_that_connects_when_the_head_stops_is_not_kept() -> None:
    """It would wait for a head that is gone, and never ask the next one."""
    async with desk() as found:
        link = await join_at(found)
        late = await found.register()
        await found.pools[1].stop()

        reader, writer = await asyncio.open_connection("127.0.0.1", late.port)
        writer.write(late.ticket)

        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        link.channel.abort()


async def test_worker_that_registers_again_is_not_missed_for_its_first_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "ATTACH_TIMEOUT_S", 0.05)
    async with desk() as found:
        first = await found.register(life="a")
        monkeypatch.setattr(head_module, "ATTACH_TIMEOUT_S", 10.0)
        found.offer = partial(found.offer, life="a")  # type: ignore[method-assign]
        link = await join_at(found)
        seat = found.pools[1].seats[link.replica]
        await async_wait_until(lambda: seat.process._channel is not None, "the connection")

        await async_wait_until(lambda: first.ticket not in found.head._tickets, "the first ticket's end")

        assert link.replica == first.replica
        assert seat.worker is not None
        assert seat.process.reason == ""
        link.channel.abort()


async def test_taken_port_is_refused_with_the_flags() -> None:
    async with desk() as found:
        second = Head(fake_pipeline(), HeadOptions(frozenset({0}), found.address), FACTS, str)
        with pytest.raises(ConfigError, match="cannot listen at") as taken:
            await second.open()
        await second.close()

    assert f"--omni-master-port {found.address.port}" in taken.value.where


async def test_missing_stages_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SB-11: a hint lists the stages that are missing, and how each is started."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(head_module, "FIRST_HINT_S", 0.0)
    async with desk(own=frozenset()) as found:
        await async_wait_until(lambda: caplog.text.count("no worker runs stage") == 2, "the hints")

        assert found.pools[0].missing
    assert "no worker runs stage 0 (talker); start one with: start-stage 0" in caplog.text
    assert "no worker runs stage 1 (vocoder); start one with: start-stage 1" in caplog.text


# The worker's side


async def join_at(found: Desk, address: HeadAddress | None = None, **options: Any) -> Link:
    settings = WorkerOptions(1, address or found.address, **{"head_timeout_s": 10.0, **options})
    return await join(found.context, settings, found.offer)


async def test_worker_joins_and_its_connection_is_used() -> None:
    async with desk() as found:
        link = await join_at(found)

        await async_wait_until(lambda: found.pools[1].seats[0].process._channel is not None, "the connection")
        link.channel.abort()
        assert link.replica == 0


async def test_worker_hears_why_it_is_refused() -> None:
    async with desk() as found:
        with pytest.raises(ConfigError, match="token is not the head's") as refused:
            await join_at(found, replace(found.address, token="another token"))

    assert refused.value.exit_code == 2
    assert "OMNI_TOKEN" in refused.value.hint


async def test_worker_of_another_version_hears_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk() as found:
        monkeypatch.setattr(messages, "PROTOCOL", messages.PROTOCOL + 1)
        with pytest.raises(ConfigError, match=r"(speaks|version)") as refused:
            await join_at(found)

    assert "install the same version" in refused.value.hint


async def test_worker_trusts_no_head_that_does_not_know_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """SB-10: it is not told what to do by whoever listens there."""
    async with desk() as found:
        monkeypatch.setattr(head_module, "is_proven", lambda *_: True)

        with pytest.raises(ConfigError, match="does not know the token of this worker"):
            await join_at(found, replace(found.address, token="another token"))


async def test_worker_gives_up_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """B11: a wrong port ends with a message."""
    monkeypatch.setattr(join_module, "ANSWER_S", 0.05)
    monkeypatch.setattr(join_module, "PAUSE_S", 0.01)
    async with desk() as found:
        with reserved_port() as port, pytest.raises(DeadlineError, match="found no head at") as late:
            await join_at(found, HeadAddress("127.0.0.1", port, TOKEN), head_timeout_s=0.3)

    assert "--omni-master-port" in late.value.hint


async def test_worker_that_reaches_one_of_the_heads_ports_only_says_which_one_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Firewalls let one port through and not the other, which the head takes anew at each start."""
    monkeypatch.setattr(join_module, "PAUSE_S", 0.01)
    with reserved_port() as port:
        async with desk() as found:
            monkeypatch.setattr(Head, "_port", property(lambda _: port))

            with pytest.raises(DeadlineError, match=f"port {port} for stage messages at 127.0.0.1: the head answers, but"):
                await join_at(found, head_timeout_s=2.0)


async def test_slow_name_server_keeps_nobody_else_in_the_worker_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other replicas of the worker would miss their heartbeats."""
    asked, answer = threading.Event(), threading.Event()

    def look_up(host: str) -> list[str]:
        asked.set()
        assert answer.wait(5), "the loop stood still"
        return [host]

    monkeypatch.setattr(join_module, "addresses", look_up)
    async with desk() as found:
        joining = asyncio.create_task(join_at(found))
        await async_wait_until(asked.is_set, "the question")  # the loop runs, or this would never be seen
        answer.set()

        (await joining).channel.abort()


async def test_worker_waits_for_a_head_that_comes_later() -> None:
    """SB-07: worker first."""
    async with desk() as found:
        await found.head.close()
        waiting = asyncio.create_task(join_at(found))
        await asyncio.sleep(0)
        await found.head.open()

        link = await asyncio.wait_for(waiting, 20)
        link.channel.abort()
