"""Conversations over the GA dialect, as JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontends import Frontend
from omni_duplex.manager import SessionManager, Tools
from omni_duplex.model import DuplexModel, SessionConfig
from omni_duplex.protocol.ga import GaDialect
from omni_duplex.session.actor import SessionActor
from omni_duplex.testing import VirtualClock


class Talk:
    """One client."""

    def __init__(self, actor: SessionActor) -> None:
        self.actor = actor
        self.events: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.actor.receive(json.loads(json.dumps({"type": kind, **fields})))

    async def until(self, last: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while not found or found[-1]["type"] != last:
            event = await self.actor.outbox.channel.get()
            assert isinstance(event, dict), f"{event} before {last}; there were {found}"
            found.append(json.loads(json.dumps(event)))
        self.events += found
        return found


@pytest.fixture
async def talk() -> AsyncIterator[Callable[..., Any]]:
    """Return a function that opens a session: `await talk(model, ear=...)`."""
    managers: list[SessionManager] = []

    async def begin(model: DuplexModel, *, ear: Any = None, dialect: Any = None, config: SessionConfig | None = None) -> Talk:
        settings = DuplexSettings(max_sessions=4)
        frontend = Frontend(0, (), 4)
        manager = SessionManager(
            model,
            DuplexPlan(settings, (), (frontend,)),
            frontend,
            lambda group: None,
            Tools(VirtualClock(), ear, max_lead_s=None),  # type: ignore[arg-type,return-value]
        )
        managers.append(manager)
        actor = await manager.open(dialect or GaDialect(), config or SessionConfig(model="tiny"))
        manager.attach(actor)
        return Talk(actor)

    yield begin
    for manager in managers:
        assert await manager.close()
