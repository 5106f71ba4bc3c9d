"""Slots: whatever happens to openings, sessions and replicas, capacity comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontends import Frontend
from omni_core.errors import ConfigError
from omni_duplex.errors import CapacityError, DuplexError
from omni_duplex.manager import SessionManager, Tools
from omni_duplex.model import Capabilities, DuplexModel, DuplexStream, ReplicaPort, SessionConfig
from omni_duplex.session import events as ev
from omni_duplex.testing import PlainDialect, ScriptedModel, ScriptedTurnModel, VirtualClock

pytestmark = pytest.mark.anyio

TWO = ({0: 0, 1: 0}, {0: 1, 1: 1})


class Port:
    def __init__(self, group: int) -> None:
        self.group = group

    def generate(self, inputs: Any, **options: Any) -> Any:
        raise AssertionError("a scripted model asks nobody")

    def open(self, inputs: Any, **options: Any) -> Any:
        raise AssertionError("a scripted model asks nobody")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manage(clock: VirtualClock) -> Callable[..., SessionManager]:
    def make(model: DuplexModel, groups: Any = (), **fields: Any) -> SessionManager:
        if groups:
            fields = {"replica_policy": "least_sessions", "max_sessions_per_replica": 2, **fields}
        settings = DuplexSettings(**{"max_sessions": 4, **fields})
        frontend = Frontend(0, tuple(range(len(groups))), settings.max_sessions)
        return SessionManager(model, DuplexPlan(settings, groups, (frontend,)), frontend, Port, Tools(clock=clock))

    return make


async def opened(manager: SessionManager) -> Any:
    actor = await manager.open(PlainDialect(), SessionConfig())
    manager.attach(actor)
    return actor


async def test_sessions_fill_groups_in_turn_and_the_next_one_is_refused_with_retryable(manage: Any) -> None:
    """DP-05, DP-07, DX-04: cap 2 and two groups: 0, 1, 0, 1, then nothing."""
    manager = manage(ScriptedModel(), TWO, max_sessions=9)

    actors = [await opened(manager) for _ in range(4)]
    groups = manager.placement.by_group()

    assert groups == {0: 2, 1: 2}
    assert manager.placement.free == 0
    with pytest.raises(CapacityError, match="replica_capacity_exhausted") as caught:
        await opened(manager)
    assert caught.value.retryable
    assert caught.value.code == "resource_exhausted"
    actors[0].post(ev.Close())
    await asyncio.wait_for(actors[0].freed.wait(), 10)
    await opened(manager)


async def test_a_shared_replica_counts_once(manage: Any) -> None:
    """DP-04: two groups on one replica of stage 1 admit two sessions, whatever max_sessions says."""
    manager = manage(ScriptedModel(), ({0: 0, 1: 0}, {0: 1, 1: 0}))

    for _ in range(2):
        await opened(manager)

    with pytest.raises(CapacityError, match="replica_capacity_exhausted"):
        await opened(manager)


async def test_the_global_limit_is_named(manage: Any) -> None:
    manager = manage(ScriptedModel(), max_sessions=1)
    await opened(manager)

    with pytest.raises(CapacityError, match="duplex_session_capacity_exhausted: limit=1"):
        await opened(manager)


async def test_a_dead_replica_ends_its_sessions_and_no_others(manage: Any) -> None:
    """DP-10."""
    manager = manage(ScriptedModel(), TWO)
    first, second = await opened(manager), await opened(manager)

    manager.replica_lost(1, 0, "stage 1 replica 0 died")
    await asyncio.wait_for(first.freed.wait(), 10)

    assert not second.session.is_over
    third = await opened(manager)
    assert manager.placement.by_group() == {1: 2}
    assert third.session.life == "admitting" or not third.session.is_over


async def test_a_replica_that_leaves_keeps_its_sessions_and_gets_no_more(manage: Any) -> None:
    manager = manage(ScriptedModel(), TWO)
    first, second = await opened(manager), await opened(manager)
    everyone = [(stage, replica) for group in TWO for stage, replica in group.items()]

    manager.replicas_ready([replica for replica in everyone if replica != (1, 0)])
    third = await opened(manager)

    assert not any(actor.session.is_over for actor in (first, second, third))
    assert manager.placement.by_group() == {0: 1, 1: 2}
    assert manager.placement.free == 0
    with pytest.raises(CapacityError, match="takes no more"):
        await opened(manager)

    manager.replicas_ready(everyone)
    await opened(manager)
    assert manager.placement.by_group() == {0: 2, 1: 2}


async def test_a_slot_is_held_until_the_stream_is_closed(manage: Any, clock: VirtualClock) -> None:
    """DP-06: closing fails twice, and the reaper's interval later it succeeds."""
    manager = manage(ScriptedModel(failing_closes=2), max_sessions=1, reaper_interval_s=5.0)
    actor = await opened(manager)

    actor.post(ev.Close())
    for _ in range(2):
        while "cleanup" not in actor.session.timers:
            await asyncio.sleep(0)
        assert manager.placement.held == 1
        clock.advance(5)
        await actor.idle()
    await asyncio.wait_for(actor.freed.wait(), 10)

    assert manager.placement.held == 0


class SlowModel(ScriptedModel):
    """Opens a stream when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def open(self, *args: Any) -> DuplexStream:
        await self.go.wait()
        return await super().open(*args)


async def test_an_opening_that_is_cancelled_gives_its_slot_back(manage: Any) -> None:
    model = SlowModel()
    manager = manage(model, max_sessions=1)
    task = asyncio.ensure_future(manager.open(PlainDialect(), SessionConfig()))
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert manager.placement.held == 1, "the stream may still come"
    model.go.set()
    while manager.placement.held:
        await asyncio.sleep(0)

    assert model.closed == model.streams
    await opened(manager)


async def test_an_opening_that_takes_too_long_is_told_and_cleaned_up(manage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_duplex.manager.OPEN_TIMEOUT_S", 0.01)
    model = SlowModel()
    manager = manage(model, max_sessions=1)

    with pytest.raises(DuplexError, match="did not open") as caught:
        await opened(manager)
    model.go.set()
    while manager.placement.held:
        await asyncio.sleep(0)

    assert caught.value.retryable
    assert len(model.closed) == 1


async def test_a_model_that_refuses_a_configuration_costs_no_slot(manage: Any) -> None:
    class Refusing(ScriptedModel):
        def validate(self, config: SessionConfig) -> None:
            raise self.error("bad_gain", "gain must be in (0, 1]", "gain")

    manager = manage(Refusing(), max_sessions=1)

    for _ in range(3):
        with pytest.raises(DuplexError, match="gain must be"):
            await opened(manager)
        while manager.placement.held:
            await asyncio.sleep(0)


async def test_a_wrong_token_and_an_old_one_are_refused(manage: Any) -> None:
    manager = manage(ScriptedModel())
    actor = await manager.open(PlainDialect(resumable=True), SessionConfig())
    token = manager.attach(actor).token
    while not actor.outbox.seq:
        await asyncio.sleep(0)

    with pytest.raises(DuplexError, match="token"):
        manager.resume(actor.session.id, "guess", 0)
    newer = manager.resume(actor.session.id, token, 0).token
    with pytest.raises(DuplexError, match="token"):
        manager.resume(actor.session.id, token, 0)
    with pytest.raises(DuplexError, match="no event has the number 99"):
        manager.resume(actor.session.id, newer, 99)
    with pytest.raises(DuplexError, match="no session"):
        manager.resume("sess_none", newer, 0)


async def test_a_client_that_stays_away_loses_its_session(manage: Any, clock: VirtualClock) -> None:
    manager = manage(ScriptedModel(), disconnect_grace_s=30.0)
    actor = await manager.open(PlainDialect(resumable=True), SessionConfig())
    attachment = manager.attach(actor)

    manager.detach(attachment)
    while "grace" not in actor.session.timers:
        await asyncio.sleep(0)
    clock.advance(29)
    await actor.idle()
    assert not actor.session.is_over
    clock.advance(2)
    await asyncio.wait_for(actor.freed.wait(), 10)

    assert manager.placement.held == 0


async def test_closing_ends_every_session_and_takes_no_more(manage: Any) -> None:
    manager = manage(ScriptedModel())
    actors = [await opened(manager) for _ in range(3)]

    assert await manager.close()

    assert all(actor.freed.is_set() for actor in actors)
    with pytest.raises(CapacityError, match="shutting down"):
        await opened(manager)


async def test_a_session_that_was_being_opened_does_not_outlive_the_closing(manage: Any) -> None:
    """Nobody would end it: the server would wait for it until its time to drain is over."""
    model = SlowModel()
    manager = manage(model)
    opening = asyncio.create_task(manager.open(PlainDialect(), SessionConfig()))
    await asyncio.sleep(0)
    closing = asyncio.create_task(manager.close())
    await asyncio.sleep(0)

    model.go.set()

    with pytest.raises(CapacityError, match="shutting down"):
        await opening
    assert await closing
    assert model.closed == model.streams


def test_a_model_that_contradicts_itself_is_refused(manage: Any) -> None:
    with pytest.raises(ConfigError, match="no whole number of samples"):
        manage(ScriptedModel(capabilities=Capabilities(unit_ms=7, input_rate=11_025)))


async def test_a_model_that_writes_down_what_it_hears_is_asked_for_each_turn(manage: Any) -> None:
    class Writing(ScriptedTurnModel):
        async def transcribe(self, pcm: Any, sample_rate: int, config: SessionConfig, replica: ReplicaPort) -> str:
            return f"{len(pcm)} samples at {sample_rate} Hz in {config.transcription}, group {replica.group}"

    manager = manage(Writing(), TWO)
    assert manager.has_transcriber
    await opened(manager)
    actor = await manager.open(PlainDialect(), SessionConfig(turn_detection=None, transcription={"language": "de"}))
    channel = manager.attach(actor).channel

    for command in (ev.Append(np.zeros(100, np.float32)), ev.Commit()):
        await actor.receive({"command": command})
    while (event := await channel.get())["type"] != "conversation.item.input_audio_transcription.completed":
        pass

    assert event["transcript"] == "100 samples at 24000 Hz in {'language': 'de'}, group 1"
    assert actor.session.items[0].content[0].text == event["transcript"]


async def test_what_is_still_being_written_down_ends_with_the_session(manage: Any) -> None:
    ended = asyncio.Event()

    class Slow(ScriptedTurnModel):
        async def transcribe(self, *args: Any) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return ""

    manager = manage(Slow())
    actor = await manager.open(PlainDialect(), SessionConfig(turn_detection=None, transcription={}))
    manager.attach(actor)
    for command in (ev.Append(np.zeros(100, np.float32)), ev.Commit()):
        await actor.receive({"command": command})
    await actor.idle()

    actor.post(ev.Close())
    await asyncio.wait_for(actor.freed.wait(), 10)

    await asyncio.wait_for(ended.wait(), 10)


async def test_session_whose_replica_dies_while_it_is_opened_is_refused(manage: Any) -> None:
    class SlowModel(ScriptedModel):
        async def open(self, config: Any, port: Any, fence: Any) -> DuplexStream:
            stream = await super().open(config, port, fence)
            manager.replica_lost(1, 0, "stage 1 replica 0 died")
            return stream

    manager = manage(SlowModel(), TWO)

    with pytest.raises(DuplexError, match="stage 1 replica 0 died") as caught:
        await opened(manager)
    await manager.close()

    assert caught.value.retryable
    assert manager.placement.held == 0
