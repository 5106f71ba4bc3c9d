"""The realtime API of OpenAI, as generally available: what its clients send and what they read, and nothing else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omni_core.suggest import way_out
from omni_duplex.audio.formats import Decoder, Encoder, as_base64, to_bytes
from omni_duplex.errors import DuplexError
from omni_duplex.model import AudioOut, Capabilities, SessionConfig
from omni_duplex.protocol.checks import Fields, bad
from omni_duplex.protocol.items import read_item
from omni_duplex.protocol.settings import (
    Formats,
    read_max_tokens,
    read_modalities,
    read_patch,
    read_tools,
    read_voice,
    shown_session,
)
from omni_duplex.session import events as ev
from omni_duplex.session.state import Item

EXTENSIONS = frozenset(
    {
        "response.listen",
        "output_audio_buffer.cleared",
        "playback.acknowledged",
        "session.closed",
        "session.expired",
        "session.heartbeat_ack",
    }
)
"""Events of ours that clients of the realtime API do not know: some of them fail on any that they do not."""
SESSION_S = 3600
"""How long a session is said to last; activity makes it last longer."""

_Reader = Callable[["GaDialect", Fields], Sequence[ev.Command]]


class GaDialect:
    """One session with a client of the realtime API."""

    name = "ga"
    resumable = False
    numbered = False
    extensions = False
    """Whether the client knows our own events."""

    def __init__(self) -> None:
        self.formats = Formats()
        """What the client's next event is read with."""
        self.config = SessionConfig()
        """What its next change begins with; the session may not have come that far yet."""
        self.session_id = ""
        self.capabilities = Capabilities()
        self._spoken = self.formats
        """What the session's next event is written with: the formats of the last change that it has made."""
        self._coming: deque[Formats] = deque()
        self._decoder: Decoder | None = None
        self._encoder: Encoder | None = None
        self._validate: Callable[[SessionConfig, SessionConfig], None] = lambda old, new: None
        self._expires_at: int | None = None

    def begin_with(self, session: object, config: SessionConfig, capabilities: Capabilities) -> SessionConfig:
        """Return the settings that a session is opened with, given what a `session.update` would say of it.

        Raises:
            DuplexError: A field cannot be used.
        """
        changed, self.formats = read_patch(session, config, self.formats, capabilities)
        self._spoken = self.formats
        return changed

    def begin(self, session_id: str, capabilities: Capabilities, config: SessionConfig) -> None:
        """Take what the session is."""
        self.session_id = session_id
        self.capabilities = capabilities
        self.config = config
        self._expires_at = int(time.time()) + SESSION_S

    def attached(self, generation: int, token: str) -> None:
        """Need none of it: clients of the realtime API cannot come back."""

    def check_updates(self, validate: Callable[[SessionConfig, SessionConfig], None]) -> None:
        """Ask the model, too, before settings change."""
        self._validate = validate

    # -- from the client -------------------------------------------------------------------------------------------

    def decode(self, message: Mapping[str, Any]) -> Sequence[ev.Command]:
        """Return what a client's event asks for.

        Raises:
            DuplexError: It cannot be understood or a field cannot be used.
        """
        fields = Fields(message)
        kind = fields.text("type", required=True)
        fields.text("event_id")
        readers = self.readers
        if kind not in readers:
            raise DuplexError("unknown_event", f"there is no event {kind!r}", "type", hint=way_out(kind, readers, "events"))
        commands = readers[kind](self, fields)
        fields.done()
        return commands

    @property
    def readers(self) -> Mapping[str, _Reader]:
        """What reads each event."""
        return _READERS

    def _append(self, fields: Fields) -> Sequence[ev.Command]:
        if self._decoder is None or self._decoder.form != self.formats.input:
            self._decoder = Decoder(self.formats.input, self.capabilities.input_rate)
        pcm = self._decoder.push(fields.take("audio"))
        return [ev.Append(pcm)] if len(pcm) else []

    def _update(self, fields: Fields) -> Sequence[ev.Command]:
        changed, formats = read_patch(fields.take("session"), self.config, self.formats, self.capabilities)
        self._validate(self.config, changed)
        self.config, self.formats = changed, formats
        self._coming.append(formats)
        return [ev.Update(changed)]

    def _create_item(self, fields: Fields) -> Sequence[ev.Command]:
        item = read_item(fields.take("item"), self.formats.input, self.capabilities)
        return [ev.CreateItem(item, fields.text("previous_item_id"))]

    def _truncate(self, fields: Fields) -> Sequence[ev.Command]:
        item_id = fields.text("item_id", required=True)
        index = fields.number("content_index", 0, 0, 1 << 20, whole=True)
        return [ev.TruncateItem(item_id, index, fields.number("audio_end_ms", 0, 0, 1 << 40, whole=True))]

    def _create_response(self, fields: Fields) -> Sequence[ev.Command]:
        value = fields.take("response")
        if value is None:
            return [ev.CreateResponse()]
        options, items = self._response(Fields(value, "response"))
        return [ev.CreateResponse(options, items)]

    def _response(self, fields: Fields) -> tuple[dict[str, Any], tuple[Item, ...] | None]:
        options: dict[str, Any] = {}
        if "instructions" in fields:
            options["instructions"] = fields.text("instructions", "")
        if "output_modalities" in fields:
            modalities = fields.take("output_modalities")
            options["output_modalities"] = read_modalities(modalities, self.capabilities, "response.output_modalities")
        if "tools" in fields:
            options["tools"] = read_tools(fields.take("tools"), self.capabilities, "response.tools")
        if "tool_choice" in fields:
            options["tool_choice"] = fields.take("tool_choice")
        if "max_output_tokens" in fields:
            options["max_output_tokens"] = read_max_tokens(fields, "max_output_tokens")
        if "audio" in fields:
            options |= self._response_audio(Fields(fields.take("audio"), "response.audio"))
        options["metadata"] = read_metadata(fields.take("metadata"))
        options["conversation"] = fields.choice("conversation", ("auto", "none"), "auto")
        fields.flag("parallel_tool_calls", True)
        fields.refuse("prompt", "there is no store of prompts")
        fields.refuse("reasoning", "no served model reasons aloud")
        items = fields.take("input")
        fields.done()
        return options, None if items is None else self._input(items)

    def _response_audio(self, fields: Fields) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "output" in fields:
            output = Fields(fields.take("output"), "response.audio.output")
            if "voice" in output:
                options["voice"] = read_voice(output.take("voice"), self.capabilities, "response.audio.output.voice")
            output.refuse("format", "the session's format holds")
            output.done()
        fields.done()
        return options

    def _input(self, value: object) -> tuple[Item, ...]:
        if not isinstance(value, list):
            raise bad("response.input", value, "a list of items")
        for index, item in enumerate(value):
            if isinstance(item, Mapping) and item.get("type") == "item_reference":
                hint = "send the items themselves, or leave input out"
                raise DuplexError(
                    "unsupported_parameter", "references to items are not read", f"response.input[{index}]", hint=hint
                )
        form, capabilities = self.formats.input, self.capabilities
        return tuple(read_item(item, form, capabilities, f"response.input[{index}]") for index, item in enumerate(value))

    # -- to the client ---------------------------------------------------------------------------------------------

    def encode(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return an event as the client reads it."""
        kind = event["type"]
        if kind in EXTENSIONS and not self.extensions:
            return []
        if kind in ("session.created", "session.updated"):
            if kind == "session.updated" and self._coming:
                self._spoken = self._coming.popleft()
            return [{**event, "session": shown_session(self.session_id, event["session"], self._spoken, self._expires_at)}]
        delta = event.get("delta")
        if isinstance(delta, AudioOut):
            data = self._encode_audio(delta)
            return [{**event, "delta": as_base64(data)}] if data else []
        if kind == "response.output_audio.done":
            return self._last_audio(event)
        if kind == "conversation.item.retrieved":
            return [{**event, "item": self._with_audio(event["item"])}]
        return [event]

    def _encode_audio(self, delta: AudioOut) -> bytes:
        encoder = self._encoder
        if encoder is None or encoder.form != self._spoken.output or encoder.rate != delta.sample_rate:
            encoder = self._encoder = Encoder(self._spoken.output, delta.sample_rate)
        return encoder.push(delta.pcm)

    def _last_audio(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return what the resampler held back of an answer, then its end."""
        import numpy as np

        encoder, self._encoder = self._encoder, None
        rest = encoder.push(np.zeros(0, np.float32), last=True) if encoder is not None else b""
        delta = {**event, "type": "response.output_audio.delta", "delta": as_base64(rest)}
        return [delta, event] if rest else [event]

    def _with_audio(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an item with the user's audio in the client's format."""
        if "content" not in item:
            return item
        return {**item, "content": [self._encode_part(part) for part in item["content"]]}

    def _encode_part(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        audio = part.get("audio")
        if audio is None:
            return part
        form = self._spoken.input
        encoder = Encoder(form, self.capabilities.input_rate)
        same = form.rate == self.capabilities.input_rate
        return {**part, "audio": as_base64(to_bytes(audio, form) if same else encoder.push(audio, last=True))}


def read_metadata(value: object) -> Mapping[str, str] | None:
    """Return a response's metadata: texts by name, which come back with it.

    Raises:
        DuplexError: It is something else.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise bad("response.metadata", value, "an object of texts")
    if len(value) > 16:
        raise bad("response.metadata", f"{len(value)} entries", "at most 16 entries")
    return value


def _item_id(kind: type[ev.DeleteItem] | type[ev.RetrieveItem]) -> _Reader:
    return lambda dialect, fields: [kind(fields.text("item_id", required=True))]


_READERS: dict[str, _Reader] = {
    "session.update": GaDialect._update,
    "input_audio_buffer.append": GaDialect._append,
    "input_audio_buffer.commit": lambda dialect, fields: [ev.Commit()],
    "input_audio_buffer.clear": lambda dialect, fields: [ev.ClearInput()],
    "output_audio_buffer.clear": lambda dialect, fields: [ev.ClearOutput()],
    "conversation.item.create": GaDialect._create_item,
    "conversation.item.delete": _item_id(ev.DeleteItem),
    "conversation.item.retrieve": _item_id(ev.RetrieveItem),
    "conversation.item.truncate": GaDialect._truncate,
    "response.create": GaDialect._create_response,
    "response.cancel": lambda dialect, fields: [ev.CancelResponse(fields.text("response_id"))],
}
