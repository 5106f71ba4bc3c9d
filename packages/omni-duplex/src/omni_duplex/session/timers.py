"""Arm and disarm a session's timers. The state knows which ones count, so that one that was under way is ignored."""

from __future__ import annotations

from omni_duplex.session import events as ev
from omni_duplex.session.state import Session


def arm(session: Session, name: str, at: float) -> ev.Arm:
    """Return the effect that sends `Timer(name, at)` at `at`, in place of one that waits."""
    session.timers[name] = at
    return ev.Arm(name, at)


def disarm(session: Session, *names: str) -> list[ev.Effect]:
    """Return the effects that forget these timers, none for those that are not armed."""
    return [ev.Disarm(name) for name in names if session.timers.pop(name, None) is not None]
