"""How a session of the Live API begins: what `session.start` asks for, and the session as that API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from omni_duplex.audio.formats import AudioFormat, parse_format
from omni_duplex.errors import DuplexError
from omni_duplex.model import Capabilities, SessionConfig
from omni_duplex.protocol.checks import Fields, bad
from omni_duplex.protocol.settings import Formats, read_voice
from omni_duplex.session.state import Item, Part

PCM_RATES = (24_000, 16_000)
MAX_HISTORY = 128
"""Messages of text that a session may begin with."""
_ROLES = {"developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = {"developer": ("input_text",), "user": ("input_text",), "assistant": ("text", "output_text")}


@dataclass(frozen=True)
class Start:
    """What a `session.start` asks for."""

    config: SessionConfig
    formats: Formats
    history: tuple[Item, ...]


def read_start(value: object, config: SessionConfig, capabilities: Capabilities) -> Start:
    """Return what a session is to be.

    Args:
        value: The event's `session`.
        config: What holds where it says nothing.
        capabilities: What the model can do.

    Raises:
        DuplexError: A field is unknown, has a wrong value, or asks for what this server or model cannot do.
    """
    fields = Fields(value, "session")
    changes: dict[str, Any] = {"model": fields.text("model", required=True)}
    instructions = fields.text("instructions", "")
    if instructions.strip():
        if not capabilities.instructions:
            raise DuplexError("instructions_unsupported", "this model follows no instructions", "session.instructions")
        changes["instructions"] = instructions
    formats = Formats()
    if "audio" in fields:
        formats = _audio(Fields(fields.take("audio"), "session.audio"), capabilities, changes)
    history = _history(fields.take("input"), capabilities)
    read_delegation(fields)
    fields.refuse("client", "it is for WebRTC, which this server does not speak")
    fields.text("safety_identifier")  # a label of the caller's, which changes nothing
    if fields.flag("store", False):
        raise DuplexError("unsupported_parameter", "session.store is not supported: sessions are not recorded", "session.store")
    fields.done()
    return Start(replace(config, **changes), formats, history)


def read_delegation(fields: Fields) -> None:
    """Take who does what the model delegates: nothing is delegated, so that only the application may be named.

    Raises:
        DuplexError: It is a backend that is not there.
    """
    if fields.take("triggers"):
        name = fields.name("triggers")
        raise DuplexError("unsupported_parameter", f"{name} is not supported: there is no Decisions API here", name)
    value = fields.take("delegation")
    if value is None:
        return
    delegation = Fields(value, fields.name("delegation"))
    if (kind := delegation.take("type")) != "client":
        name = delegation.name("type")
        raise DuplexError("unsupported_parameter", f"{name} {kind!r} is not supported", name, hint="use client, or null")
    delegation.number("acknowledgement_delay_ms", 0, 0, 1 << 31, whole=True)
    delegation.done()


def _audio(fields: Fields, capabilities: Capabilities, changes: dict[str, Any]) -> Formats:
    form = AudioFormat()
    if (value := fields.take("format")) is not None:
        form = parse_format(value, "session.audio.format")
        if form.law is None and form.rate not in PCM_RATES:
            raise DuplexError(
                "unsupported_audio_format",
                f"audio/pcm has no rate {form.rate} in this protocol",
                "session.audio.format.rate",
                hint="use 24000 or 16000",
            )
    if (value := fields.take("output")) is not None:
        output = Fields(value, "session.audio.output")
        if "voice" in output:
            changes["voice"] = read_voice(output.take("voice"), capabilities, "session.audio.output.voice")
        output.done()
    fields.done()
    return Formats(form, form)


def _history(value: object, capabilities: Capabilities) -> tuple[Item, ...]:
    if not value:
        return ()
    if not isinstance(value, list):
        raise bad("session.input", value, "a list of messages")
    if len(value) > MAX_HISTORY:
        raise bad("session.input", f"{len(value)} messages", f"at most {MAX_HISTORY} messages")
    if not capabilities.text_input:
        raise DuplexError("text_unsupported", "this model takes no text", "session.input", hint="leave it out")
    return tuple(_message(Fields(message, f"session.input[{index}]")) for index, message in enumerate(value))


def _message(fields: Fields) -> Item:
    role = fields.choice("role", tuple(_ROLES))
    if role is None:
        raise DuplexError("missing_required_parameter", f"{fields.name('role')} is missing", fields.name("role"))
    item = Item(fields.text("id", ""), "message", _ROLES[role])  # type: ignore[arg-type]
    fields.choice("type", ("message",))
    fields.choice("status", ("completed", "incomplete"))
    content = fields.take("content")
    if not isinstance(content, list) or len(content) != 1:
        raise bad(fields.name("content"), content, "a list of exactly one text part")
    part = Fields(content[0], f"{fields.name('content')}[0]")
    part.choice("type", _TEXTS[role])
    item.content = [Part("output_text" if role == "assistant" else "input_text", part.text("text", required=True))]
    part.done()
    fields.done()
    return item


def shown_resource(session_id: str, config: SessionConfig, form: AudioFormat, expires_at: int) -> Mapping[str, Any]:
    """Return a session as the Live API has it."""
    return {
        "id": session_id,
        "status": "active",
        "model": config.model,
        "expires_at": expires_at,
        "instructions": config.instructions or None,
        "audio": {"format": {"type": form.type, "rate": form.rate}, "output": {"voice": config.voice or "default"}},
        "delegation": None,
        "store": False,
        "triggers": [],
    }
