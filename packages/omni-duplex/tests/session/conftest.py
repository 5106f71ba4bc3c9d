"""Sessions whose clock and model the test holds in its hands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontends import Frontend
from omni_duplex.manager import SessionManager, Tools
from omni_duplex.model import DuplexModel
from omni_duplex.session.actor import SessionActor
from omni_duplex.testing import VirtualClock


class Port:
    """A replica group without a pipeline."""

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
    """Return a function that makes a manager for a model: `manage(model, max_sessions=3, groups=..., ear=...)`."""

    def make(
        model: DuplexModel, *, groups: tuple[Mapping[int, int], ...] = (), ear: Any = None, **fields: Any
    ) -> SessionManager:
        settings = DuplexSettings(**{"max_sessions": 2, **fields})
        frontend = Frontend(0, tuple(range(len(groups))), settings.max_sessions)
        plan = DuplexPlan(settings, groups, (frontend,))
        return SessionManager(model, plan, frontend, Port, Tools(clock=clock, ear=ear, max_lead_s=None))

    return make


async def read(actor: SessionActor, last: str) -> list[dict[str, Any]]:
    """Return events up to the first one of a type."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != last:
        event = await actor.outbox.channel.get()
        assert isinstance(event, dict), f"the socket was closed with {event} before {last}; there were {found}"
        found.append(event)
    return found


@pytest.fixture
def until() -> Any:
    """Return `read`."""
    return read
