"""Our own dialect: the realtime API and what a client that comes back, acknowledges and interrupts needs besides.

Names are those of the incumbent's extension, so that its clients go on working. A client of this dialect can resume its
session: `session.created` and `session.resumed` carry the token for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omni_duplex.model import Capabilities
from omni_duplex.protocol.checks import Fields
from omni_duplex.protocol.ga import GaDialect
from omni_duplex.session import events as ev
from omni_duplex.session.state import Item, Part


class OmniDialect(GaDialect):
    """One session with a client that knows our own events."""

    name = "omni"
    resumable = True
    numbered = True
    extensions = True

    def __init__(self) -> None:
        super().__init__()
        self._attachment: dict[str, Any] = {}

    def attached(self, generation: int, token: str) -> None:
        """Take what `session.created` tells the client for coming back."""
        self._attachment = {"attachment_generation": generation, "resume_token": token}

    @property
    def readers(self) -> Mapping[str, Any]:
        """What reads each event."""
        return _READERS

    def encode(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return an event as the client reads it."""
        messages = super().encode(event)
        if event["type"] != "session.created":
            return messages
        facts = {**self._attachment, "capabilities": shown_capabilities(self.capabilities)}
        return [{**message, **facts} for message in messages]


def shown_capabilities(capabilities: Capabilities) -> dict[str, Any]:
    """Return what a model can do, in the incumbent's names."""
    return {
        "supports_input_append": True,
        "supports_barge_in": capabilities.barge_in,
        "supports_playback_ack": True,
        "supports_audio_truncate": capabilities.truncate,
        "supports_session_resume": capabilities.session_resume,
        "supports_multi_session_same_replica": capabilities.sessions_per_replica > 1,
        "supports_model_native_turn_policy": capabilities.turn_policy == "model",
        "supports_image_input": capabilities.image_input,
        "supports_text_only_turn": capabilities.text_input,
        "chunk_period_ms": capabilities.unit_ms if capabilities.turn_policy == "model" else None,
    }


def _text(dialect: GaDialect, fields: Fields) -> Sequence[ev.Command]:
    text = fields.text("text", required=True)
    return [ev.CreateItem(Item("", "message", "user", content=[Part("input_text", text)]))]


def _playback(dialect: GaDialect, fields: Fields) -> Sequence[ev.Command]:
    item_id = fields.text("item_id", required=True)
    return [ev.Playback(item_id, fields.number("played_ms", 0, 0, 1 << 40, whole=True))]


def _acknowledge(dialect: GaDialect, fields: Fields) -> Sequence[ev.Command]:
    return [ev.Acknowledge(fields.number("last_received_server_event_seq", 0, 0, 1 << 53, whole=True))]


def _signal(dialect: GaDialect, fields: Fields) -> Sequence[ev.Command]:
    return [ev.Signal(fields.choice("signal", ("user_started", "user_committed"), "user_started") == "user_started")]


_READERS = {
    **GaDialect().readers,
    "session.heartbeat": lambda dialect, fields: [ev.Touch()],
    "session.event_ack": _acknowledge,
    "session.close": lambda dialect, fields: [ev.Close("client")],
    "input.commit": lambda dialect, fields: [ev.Commit()],
    "input.cancel": lambda dialect, fields: [ev.ClearInput()],
    "input.text.append": _text,
    "barge_in": lambda dialect, fields: [ev.ClearOutput()],
    "turn.signal": _signal,
    "playback.ack": _playback,
}
