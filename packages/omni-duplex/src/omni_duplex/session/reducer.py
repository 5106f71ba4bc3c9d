"""How a session changes: one event in, what is to be done about it out.

`reduce` changes the state in place and is otherwise a pure function of (state, event, now): no waiting, no clock, no input or
output. So every order of events can be tried in a test. The parts are `hearing` (the user's turn), `answering` (the model's),
`conversation` (items) and `living` (sockets, deadlines, the end).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_duplex.errors import DuplexError
from omni_duplex.session import answering, conversation, hearing, living
from omni_duplex.session import events as ev
from omni_duplex.session.state import Life, Session

Handler = Callable[[Session, Any, float], list[ev.Effect]]

_HANDLERS: dict[type, Handler] = {
    ev.Append: hearing.append,
    ev.Commit: hearing.commit,
    ev.ClearInput: hearing.clear,
    ev.SpeechStarted: hearing.speech_started,
    ev.SpeechStopped: hearing.speech_stopped,
    ev.Consumed: hearing.consumed,
    ev.Transcribed: hearing.transcribed,
    ev.CreateResponse: answering.create,
    ev.CancelResponse: answering.cancel,
    ev.ClearOutput: answering.clear,
    ev.Produced: answering.produced,
    ev.Failed: answering.failed,
    ev.Playback: answering.played,
    ev.CreateItem: conversation.create,
    ev.DeleteItem: conversation.delete,
    ev.RetrieveItem: conversation.retrieve,
    ev.TruncateItem: conversation.truncate,
    ev.Update: living.update,
    ev.Touch: living.touch,
    ev.Acknowledge: living.acknowledge,
    ev.Signal: hearing.signalled,
    ev.Close: living.close,
    ev.Attached: living.attached,
    ev.Detached: living.detached,
    ev.Overflowed: living.overflowed,
    ev.ReplicaLost: living.replica_lost,
    ev.Cleaned: living.cleaned,
}
_ALWAYS = (ev.Cleaned, ev.Consumed, ev.Detached)
"""Events that still matter when the session ends."""


def reduce(session: Session, event: ev.Event, now: float) -> list[ev.Effect]:
    """Change a session by one event and return what is to be done, in order.

    A command that cannot be carried out changes nothing but answers with an error event.

    Args:
        session: The session; changed in place.
        event: What happened.
        now: Seconds on the session's clock.
    """
    if isinstance(event, ev.Timer):
        return _timer(session, event, now)
    if session.life is Life.CLOSED or (session.is_over and not isinstance(event, _ALWAYS)):
        return []
    handle = _HANDLERS[type(event)]
    if not isinstance(event, ev.Command):
        return handle(session, event, now)
    effects = living.stay_alive(session, now)
    try:
        return effects + handle(session, event, now)
    except DuplexError as error:
        return [*effects, ev.Send({"type": "error", "error": error.body(event.event_id)})]


def _timer(session: Session, event: ev.Timer, now: float) -> list[ev.Effect]:
    if session.timers.get(event.name) != event.at:
        return []  # it was armed anew or disarmed when this one was on its way
    del session.timers[event.name]
    return _TIMERS[event.name](session, event, now)


_TIMERS: dict[str, Handler] = {
    living.IDLE: living.expire,
    living.GRACE: living.grace_over,
    living.CLEANUP: living.clean_again,
    answering.PLAYED: answering.playback_over,
    hearing.WAITING: hearing.user_silent,
}
