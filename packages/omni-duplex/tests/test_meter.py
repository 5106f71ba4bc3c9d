"""Numbers of sessions: they move by the right amounts and return to zero (B26)."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontends import Frontend
from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_duplex.errors import CapacityError
from omni_duplex.manager import SessionManager, Tools
from omni_duplex.meter import Meter
from omni_duplex.model import AudioOut, Fence, SessionConfig, TurnEnd
from omni_duplex.session import events as ev
from omni_duplex.testing import PlainDialect, ScriptedTurnModel, VirtualClock

pytestmark = pytest.mark.anyio


def spoken(fence: Fence) -> list[Any]:
    return [AudioOut(np.zeros(240, np.float32), 24_000, fence), TurnEnd(fence)]


async def test_slots_turns_refusals_and_endings_are_counted() -> None:
    registry, clock = Registry(), VirtualClock()
    plan = DuplexPlan(DuplexSettings(max_sessions=1), (), (Frontend(3, (), 1),))
    manager = SessionManager(
        ScriptedTurnModel([spoken]),
        plan,
        plan.frontends[0],
        lambda group: None,
        Tools(clock, meter=Meter(registry, 3)),  # type: ignore[arg-type,return-value]
    )
    assert registry.get(series.DUPLEX_FREE_SLOTS, frontend="3") == 1
    actor = await manager.open(PlainDialect(), SessionConfig(turn_detection=None))
    channel = manager.attach(actor).channel
    assert registry.get(series.DUPLEX_SESSIONS, frontend="3", group="0") == 1
    with pytest.raises(CapacityError):
        await manager.open(PlainDialect(), SessionConfig())
    for command in (ev.Append(np.zeros(10, np.float32)), ev.Commit(), ev.CreateResponse()):
        await actor.receive({"command": command})
    while (await channel.get())["type"] != "response.done":  # type: ignore[call-overload]
        pass

    actor.post(ev.Close())
    await asyncio.wait_for(actor.freed.wait(), 10)

    assert registry.get(series.DUPLEX_FREE_SLOTS, frontend="3") == 1
    assert registry.get(series.DUPLEX_SESSIONS, frontend="3", group="0") == 0
    assert registry.get(series.DUPLEX_REFUSALS, frontend="3", code="resource_exhausted") == 1
    assert registry.get(series.DUPLEX_RESPONSES, frontend="3", status="completed") == 1
    assert registry.get(series.DUPLEX_ENDINGS, frontend="3", reason="client") == 1
    assert registry.count(series.DUPLEX_FIRST_AUDIO_SECONDS, frontend="3") == 1
