"""A dialect without a wire: messages hold commands, events stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omni_duplex.model import Capabilities, SessionConfig
from omni_duplex.session.events import Command


class PlainDialect:
    """Take `{"command": Command}` and give events untouched.

    Args:
        resumable: Whether a client can come back.
    """

    name = "plain"

    def __init__(self, *, resumable: bool = False) -> None:
        self.resumable = resumable
        self.numbered = resumable

    def begin(self, session_id: str, capabilities: Capabilities, config: SessionConfig) -> None:
        """Need nothing of the session."""

    def attached(self, generation: int, token: str) -> None:
        """Need none of it."""

    def decode(self, message: Mapping[str, Any]) -> Sequence[Command]:
        """Return the command in a message."""
        return [message["command"]]

    def encode(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the event."""
        return [event]
