"""The Live API of OpenAI: a conversation without turns on the wire. There is no commit, no response and no item.

The session's timeline is that of the user's audio: it begins with the first sample and goes on with each one that is appended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from omni_duplex.errors import DuplexError
from omni_duplex.model import AudioOut, Capabilities, SessionConfig
from omni_duplex.protocol.checks import Fields
from omni_duplex.protocol.ga import GaDialect
from omni_duplex.protocol.live_start import read_delegation, read_start, shown_resource
from omni_duplex.session import events as ev
from omni_duplex.session.state import Item, Part

MAX_CONTEXT = 8_000
"""Characters of text that one event may append; the API says 500 tokens."""
MAX_INSTRUCTIONS = 256 * 1024
"""Characters of instructions from which on nothing is appended to them."""
_REASONS = {"client": "close_requested", "expired": "expired"}
_ABSENT = {
    "session.output_audio_fixture.play": "there are no audio fixtures",
    "decision.create": "there is no Decisions API here",
    "decision.item.create": "there is no Decisions API here",
    "decision.item.delete": "there is no Decisions API here",
    "response.item.create": "no Responses backend is behind a session",
    "response.create": "no Responses backend is behind a session, and the model answers by itself",
}

Ack = Mapping[str, Any]
"""What a command is answered with, once it is carried out."""


class LiveDialect(GaDialect):
    """One session with a client of the Live API."""

    name = "live"

    def __init__(self) -> None:
        super().__init__()
        self._history: tuple[Item, ...] | None = None
        self._event_id: Any = None
        self._started_by: Any = None
        self._closed_by: Any = None
        self._muted = False
        self._heard = 0
        self._spoken_ms = 0.0
        self._answering = False
        self._touches: deque[Ack] = deque()
        self._updates: deque[Ack] = deque()
        self._contexts: dict[str, Ack] = {}
        self._count = 0
        self._speech: dict[str, tuple[int, int]] = {}

    def start(self, message: Mapping[str, Any], config: SessionConfig, capabilities: Capabilities) -> SessionConfig:
        """Return the settings that the client's first message asks for, before the session is opened.

        Give the message to the session, too, when it is open: it brings the history.

        Raises:
            DuplexError: It is no `session.start`, or a field cannot be used.
        """
        fields = Fields(message)
        if fields.text("type", required=True) != "session.start":
            raise DuplexError("session_not_started", "the first event must be session.start", "type")
        self._started_by = fields.text("event_id")
        if capabilities.turn_policy == "commit" and config.turn_detection is None:
            raise DuplexError(
                "turn_detection_unavailable",
                "this model answers turns, and nothing here finds their end",
                hint="run `omni vad` on the server, or use /v1/realtime and commit turns",
            )
        start = read_start(fields.take("session"), config, capabilities)
        fields.done()
        self.formats = self._spoken = start.formats
        self._history = start.history
        return start.config

    # -- from the client -------------------------------------------------------------------------------------------

    def decode(self, message: Mapping[str, Any]) -> Sequence[ev.Command]:
        """Return what a client's event asks for.

        Raises:
            DuplexError: It cannot be understood or a field cannot be used.
        """
        self._event_id = message.get("event_id")
        return super().decode(message)

    @property
    def readers(self) -> Mapping[str, Callable[..., Sequence[ev.Command]]]:
        """What reads each event."""
        return _READERS

    def _begin(self, fields: Fields) -> Sequence[ev.Command]:
        fields.take("session")
        history, self._history = self._history, None
        if history is None:
            raise DuplexError("session_already_started", "this session has begun already", "type")
        return [ev.CreateItem(item) for item in history]

    def _append(self, fields: Fields) -> Sequence[ev.Command]:
        commands = super()._append(fields)
        self._heard += sum(len(command.pcm) for command in commands if isinstance(command, ev.Append))
        if not self._muted:
            return commands
        return [replace(command, pcm=command.pcm * 0) if isinstance(command, ev.Append) else command for command in commands]

    def _mute(self, muted: bool) -> Sequence[ev.Command]:
        self._muted = muted
        return self._note("session.input_audio.muted" if muted else "session.input_audio.unmuted")

    def _note(self, kind: str) -> Sequence[ev.Command]:
        """Answer once what came before was taken."""
        self._touches.append(self._ack(kind))
        return [ev.Touch()]

    def _update(self, fields: Fields) -> Sequence[ev.Command]:
        session = Fields(fields.take("session"), "session")
        read_delegation(session)
        session.done()
        return self._note("session.updated")

    def _instruct(self, fields: Fields) -> Sequence[ev.Command]:
        text = self._context(fields)
        if not self.capabilities.instructions:
            raise DuplexError("instructions_unsupported", "this model follows no instructions", "content")
        if len(self.config.instructions) + len(text) > MAX_INSTRUCTIONS:
            raise DuplexError("instructions_too_long", f"more than {MAX_INSTRUCTIONS} characters instruct the model", "content")
        changed = replace(self.config, instructions="\n\n".join(filter(None, (self.config.instructions, text))))
        self._validate(self.config, changed)
        self.config = changed
        self._updates.append(self._ack("session.instructions.appended"))
        return [ev.Update(changed)]

    def _inform(self, fields: Fields, kind: str) -> Sequence[ev.Command]:
        """Put text into the conversation; the model speaks of commentary at once where it is silent."""
        text = self._context(fields)
        if not self.capabilities.text_input:
            raise DuplexError("text_unsupported", "this model takes no text", "content", hint="speak to it")
        self._count += 1
        item = Item(f"{kind}_{self.session_id[-8:]}{self._count:04x}", "message", "system", content=[Part("input_text", text)])
        self._contexts[item.id] = self._ack(f"session.{kind}.appended")
        speaks = kind == "commentary" and not self._answering and self.capabilities.turn_policy == "commit"
        return [ev.CreateItem(item), *([ev.CreateResponse()] if speaks else [])]

    def _context(self, fields: Fields) -> str:
        fields.refuse("delegation_id", "nothing is delegated")
        text: str = fields.text("content", required=True)
        if not 0 < len(text) <= MAX_CONTEXT:
            raise DuplexError("invalid_value", f"content must have 1 to {MAX_CONTEXT} characters, not {len(text)}", "content")
        return text

    def _close(self) -> Sequence[ev.Command]:
        self._closed_by = self._event_id
        return [ev.Close("client")]

    def _ack(self, kind: str) -> Ack:
        return {"type": kind, **_because(self._event_id)}

    # -- to the client ---------------------------------------------------------------------------------------------

    def encode(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return an event as the client reads it; turns and items, which this API does not know, are left out."""
        write = _WRITERS.get(event["type"])
        return [] if write is None else write(self, event)

    def _show_started(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"type": "session.started", "session": self._resource(), **_because(self._started_by)}]

    def _show_noted(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        ack = self._touches.popleft()
        return [{**ack, "session": self._resource()} if ack["type"] == "session.updated" else ack]

    def _show_instructed(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{**self._updates.popleft(), **self._now()}]

    def _show_item(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        ack = self._contexts.pop(event["item"]["id"], None)
        return [] if ack is None else [{**ack, **self._now()}]

    def _show_audio(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        delta = event.get("delta")
        if isinstance(delta, AudioOut):
            self._spoken_ms = self._speaks_at() + len(delta.pcm) * 1000 / delta.sample_rate
        kind = "response.output_audio.delta"
        shown = [message for message in super().encode(event) if message["type"] == kind]
        return [{"type": "session.output_audio.delta", "delta": message["delta"]} for message in shown]

    def _show_words(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        at = int(self._speaks_at())
        return [{"type": "session.output_transcript.delta", "delta": event["delta"], "start_ms": at, "end_ms": at}]

    def _show_heard(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        start, end = self._speech.pop(event["item_id"], (self._ms(), self._ms()))
        times = {"start_ms": start, "end_ms": end}
        return (
            [{"type": "session.input_transcript.delta", "delta": event["transcript"], **times}] if event["transcript"] else []
        )

    def _forget_speech(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        self._speech.pop(event["item_id"], None)
        return []

    def _note_speech(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        if self.config.transcription is None:
            return []
        start = event.get("audio_start_ms")
        begin = self._speech.get(event["item_id"], (0, 0))[0] if start is None else start
        self._speech[event["item_id"]] = (begin, event.get("audio_end_ms", begin))
        return []

    def _note_response(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        self._answering, self._spoken_ms = True, float(self._ms())
        return []

    def _show_answered(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        self._answering = False
        usage = {"type": "session.usage.updated", "usage": self._usage()}
        if event["response"]["status"] != "cancelled":
            return [usage]
        message = "the answer was interrupted: what of it is not played yet is not part of the conversation"
        return [{"type": "info", "code": "output_interrupted", "message": message}, usage]

    def _show_error(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        error = dict(event["error"])
        cause = _because(error.pop("event_id", None))
        return [{"type": "error", "error": {**error, **cause}, **cause}]

    def _show_closed(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        reason = _REASONS.get(event["reason"], "connection_lost")
        facts = {"reason": reason, "session": self._resource(), "usage": self._usage()}
        return [{"type": "session.closed", **facts, **_because(self._closed_by)}]

    def _resource(self) -> Mapping[str, Any]:
        assert self._expires_at is not None, "begin has set it"
        return shown_resource(self.session_id, self.config, self._spoken.output, self._expires_at)

    def _ms(self) -> int:
        return self._heard * 1000 // self.capabilities.input_rate

    def _now(self) -> dict[str, int]:
        return {"start_ms": self._ms(), "end_ms": self._ms()}

    def _speaks_at(self) -> float:
        """Return where on the timeline the next audio belongs: behind what was said, and never in the past."""
        return max(float(self._ms()), self._spoken_ms)

    def _usage(self) -> dict[str, float]:
        return {"seconds": float(math.ceil(self._heard / self.capabilities.input_rate))}


def _because(event_id: object) -> dict[str, str]:
    return {"client_event_id": event_id} if isinstance(event_id, str) else {}


def _absent(kind: str) -> Callable[[LiveDialect, Fields], Sequence[ev.Command]]:
    def refuse(dialect: LiveDialect, fields: Fields) -> Sequence[ev.Command]:
        raise DuplexError("unsupported_event", f"{kind} is not supported: {_ABSENT[kind]}", "type")

    return refuse


_READERS: dict[str, Callable[..., Sequence[ev.Command]]] = {
    "session.start": LiveDialect._begin,
    "session.update": LiveDialect._update,
    "session.input_audio.append": LiveDialect._append,
    "session.input_audio.mute": lambda dialect, fields: dialect._mute(True),
    "session.input_audio.unmute": lambda dialect, fields: dialect._mute(False),
    "session.instructions.append": LiveDialect._instruct,
    "session.thinking.append": lambda dialect, fields: dialect._inform(fields, "thinking"),
    "session.commentary.append": lambda dialect, fields: dialect._inform(fields, "commentary"),
    "session.close": lambda dialect, fields: dialect._close(),
    **{kind: _absent(kind) for kind in _ABSENT},
}
_WRITERS: dict[str, Callable[[LiveDialect, Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = {
    "session.created": LiveDialect._show_started,
    "session.updated": LiveDialect._show_instructed,
    "session.heartbeat_ack": LiveDialect._show_noted,
    "conversation.item.added": LiveDialect._show_item,
    "conversation.item.input_audio_transcription.completed": LiveDialect._show_heard,
    "conversation.item.input_audio_transcription.failed": LiveDialect._forget_speech,
    "input_audio_buffer.speech_started": LiveDialect._note_speech,
    "input_audio_buffer.speech_stopped": LiveDialect._note_speech,
    "response.created": LiveDialect._note_response,
    "response.output_audio.delta": LiveDialect._show_audio,
    "response.output_audio.done": LiveDialect._show_audio,
    "response.output_audio_transcript.delta": LiveDialect._show_words,
    "response.done": LiveDialect._show_answered,
    "error": LiveDialect._show_error,
    "session.closed": LiveDialect._show_closed,
    "session.expired": LiveDialect._show_closed,
}
