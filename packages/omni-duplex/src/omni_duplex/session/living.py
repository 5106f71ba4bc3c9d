"""A session's life: sockets that come and go, deadlines, settings, and the end, which comes once."""

from __future__ import annotations

from omni_duplex.errors import SERVER, DuplexError
from omni_duplex.session import answering
from omni_duplex.session import events as ev
from omni_duplex.session.state import Life, Session, Speaking
from omni_duplex.session.timers import arm, disarm

IDLE = "idle"
GRACE = "grace"
CLEANUP = "cleanup"

CODES = {
    "client": 1000,
    "expired": 4002,
    "slow_consumer": 4003,
    "shutdown": 1012,
    "replica_lost": 1011,
    "model_failed": 1011,
}
"""Close codes of the socket by the reason for which a session ends; 1000 for others."""


def stay_alive(session: Session, now: float) -> list[ev.Effect]:
    """Begin the idle time anew."""
    ttl = session.limits.idle_ttl_s
    return [] if ttl is None else [arm(session, IDLE, now + ttl)]


def touch(session: Session, event: ev.Touch, now: float) -> list[ev.Effect]:
    """Answer a sign of life; that it came is what counts."""
    return [ev.Send({"type": "session.heartbeat_ack"})]


def acknowledge(session: Session, event: ev.Acknowledge, now: float) -> list[ev.Effect]:
    """Forget what the client has received."""
    return [ev.Trim(event.seq)]


def update(session: Session, event: ev.Update, now: float) -> list[ev.Effect]:
    """Put changed settings in force. What the client gets back is made of them by its dialect."""
    had_detection = session.config.turn_detection
    session.config = event.config
    effects: list[ev.Effect] = [ev.Configure(event.config)]
    if had_detection != event.config.turn_detection:
        effects.append(ev.ForgetInput())
    return [*effects, ev.Send({"type": "session.updated", "session": event.config})]


# -- sockets -----------------------------------------------------------------------------------------------------------


def attached(session: Session, event: ev.Attached, now: float) -> list[ev.Effect]:
    """Take a socket, the first one or a later one that takes over."""
    first = session.life is Life.ADMITTING
    session.life, session.generation = Life.ATTACHED, event.generation
    effects = disarm(session, GRACE) + stay_alive(session, now)
    if first:
        effects.append(ev.Send({"type": "session.created", "session": session.config}))
    return effects


def detached(session: Session, event: ev.Detached, now: float) -> list[ev.Effect]:
    """Wait for the client to come back where it can, and end otherwise. A socket that was taken over does not count."""
    if session.is_over or event.generation != session.generation:
        return []
    if not session.resumable:
        return end(session, now, "disconnect")
    session.life = Life.DETACHED
    return [arm(session, GRACE, now + session.limits.disconnect_grace_s)]


def overflowed(session: Session, event: ev.Overflowed, now: float) -> list[ev.Effect]:
    """Drop a socket whose client reads too slowly; one that can resume gets what it missed when it is back."""
    if not session.resumable:
        return end(session, now, "slow_consumer")
    session.life = Life.DETACHED
    hangup = ev.Hangup(CODES["slow_consumer"], "the client reads too slowly")
    return [hangup, arm(session, GRACE, now + session.limits.disconnect_grace_s)]


def grace_over(session: Session, event: ev.Timer, now: float) -> list[ev.Effect]:
    """End a session whose client did not come back."""
    return end(session, now, "disconnect") if session.life is Life.DETACHED else []


def expire(session: Session, event: ev.Timer, now: float) -> list[ev.Effect]:
    """End a session in which nothing happened for too long; not while the model speaks."""
    if session.is_over:
        return []
    if session.speaking is not Speaking.SILENT:
        return stay_alive(session, now)
    return end(session, now, "expired")


# -- the end -----------------------------------------------------------------------------------------------------------


def close(session: Session, event: ev.Close, now: float) -> list[ev.Effect]:
    """End the session. Closing it twice is closing it once."""
    return end(session, now, event.reason)


def replica_lost(session: Session, event: ev.ReplicaLost, now: float) -> list[ev.Effect]:
    """End the session with its replica, also while nothing happens in it (DP-10)."""
    error = DuplexError("engine_dead", event.reason, kind=SERVER, retryable=True, hint="open a new session")
    return [ev.Send({"type": "error", "error": error.body()}), *end(session, now, "replica_lost")]


def end(session: Session, now: float, reason: str) -> list[ev.Effect]:
    """Stop everything and clean up; the last event is sent when that was tried."""
    if session.is_over:
        return []
    effects = answering.interrupt(session, now, "client_cancelled")
    session.life, session.ending = Life.CLOSING, reason
    session.buffer.clear()
    session.pending_bytes = session.pending_turns = session.uncommitted = 0
    return [*effects, *disarm(session, *list(session.timers)), ev.Cleanup()]


def cleaned(session: Session, event: ev.Cleaned, now: float) -> list[ev.Effect]:
    """Tell the client that it is over, once, and free the slot when everything is clean (DP-06)."""
    if session.life is not Life.CLOSING:
        return []
    effects: list[ev.Effect] = []
    if not session.ended:
        session.ended = True
        kind = "session.expired" if session.ending == "expired" else "session.closed"
        effects.append(ev.Send({"type": kind, "reason": session.ending}))
        effects.append(ev.Hangup(CODES.get(session.ending, 1000), session.ending))
    if not event.ok:
        return [*effects, arm(session, CLEANUP, now + session.limits.reaper_interval_s)]
    session.life = Life.CLOSED
    return [*effects, *disarm(session, *list(session.timers)), ev.Free()]


def clean_again(session: Session, event: ev.Timer, now: float) -> list[ev.Effect]:
    """Try again to clean up."""
    return [ev.Cleanup()] if session.life is Life.CLOSING else []
