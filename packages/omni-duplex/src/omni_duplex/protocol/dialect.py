"""What a dialect does: turns a client's messages into commands, and a session's events into messages.

One dialect object belongs to one session for its whole life, since it holds the state of resamplers and half samples. The
session's core speaks of events in the form of the realtime API; `ga` hands them on, others rename, leave out and add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from omni_duplex.model import Capabilities, SessionConfig
from omni_duplex.session.events import Command


class Dialect(Protocol):
    """One session's language."""

    name: str
    resumable: bool
    """Whether a client of this dialect knows how to come back."""
    numbered: bool
    """Whether events carry `server_event_seq`."""

    def begin(self, session_id: str, capabilities: Capabilities, config: SessionConfig) -> None:
        """Take what the session is; called once, before anything else."""
        ...

    def attached(self, generation: int, token: str) -> None:
        """Take the number of the attachment that begins, and the token with which the client can come back."""
        ...

    def decode(self, message: Mapping[str, Any]) -> Sequence[Command]:
        """Return what a client's message, a JSON object, asks for.

        Raises:
            DuplexError: The message cannot be understood or a field cannot be used.
        """
        ...

    def encode(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return an event as messages; none where the dialect has no word for it.

        An audio delta is an `AudioOut`, the `session` of `session.created` and `session.updated` is the `SessionConfig`.
        """
        ...
