"""The realtime API as it was before it was generally available: other names for the same things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omni_duplex.errors import DuplexError
from omni_duplex.protocol.ga import GaDialect
from omni_duplex.session import events as ev

_RENAMED = {
    "response.output_audio.": "response.audio.",
    "response.output_audio_transcript.": "response.audio_transcript.",
    "response.output_text.": "response.text.",
}
_FORMATS: dict[str, dict[str, Any]] = {
    "pcm16": {"type": "audio/pcm", "rate": 24_000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}
_CONTENT = {"output_text": "text", "output_audio": "audio"}


class BetaDialect(GaDialect):
    """One session with a client of the beta."""

    name = "beta"

    def decode(self, message: Mapping[str, Any]) -> Sequence[ev.Command]:
        """Return what a client's event asks for.

        Raises:
            DuplexError: It cannot be understood or a field cannot be used.
        """
        changed = dict(message)
        kind = message.get("type")
        if kind == "session.update" and isinstance(message.get("session"), Mapping):
            changed["session"] = _session(message["session"])
        elif kind == "response.create" and isinstance(message.get("response"), Mapping):
            changed["response"] = _response(message["response"])
        elif kind == "conversation.item.create" and isinstance(message.get("item"), Mapping):
            changed["item"] = _item_in(message["item"])
        return super().decode(changed)

    def encode(self, event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return an event in the names of the beta."""
        return [renamed for message in super().encode(event) if (renamed := _renamed(message)) is not None]


def _session(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat session of the beta as the nested one of today."""
    rest = dict(session)
    heard: dict[str, Any] = {}
    spoken: dict[str, Any] = {}
    for side, name in ((heard, "input_audio_format"), (spoken, "output_audio_format")):
        if name in rest:
            side["format"] = _format(rest.pop(name), f"session.{name}")
    for old, new in (("turn_detection", "turn_detection"), ("input_audio_transcription", "transcription")):
        if old in rest:
            heard[new] = rest.pop(old)
    if "input_audio_noise_reduction" in rest:
        heard["noise_reduction"] = rest.pop("input_audio_noise_reduction")
    for name in ("voice", "speed"):
        if name in rest:
            spoken[name] = rest.pop(name)
    _modalities(rest)
    if "max_response_output_tokens" in rest:
        rest["max_output_tokens"] = rest.pop("max_response_output_tokens")
    _refuse_temperature(rest, "session")
    audio = {side: fields for side, fields in (("input", heard), ("output", spoken)) if fields}
    return {**rest, "audio": audio} if audio else rest


def _modalities(fields: dict[str, Any]) -> None:
    """Rename `modalities`; with audio there was always text too, its transcript."""
    if "modalities" in fields:
        wanted = fields.pop("modalities")
        both = isinstance(wanted, list) and sorted(map(str, wanted)) == ["audio", "text"]
        fields["output_modalities"] = ["audio"] if both else wanted


def _refuse_temperature(fields: dict[str, Any], path: str) -> None:
    if fields.pop("temperature", None) not in (None, 0.8):
        raise DuplexError(
            "unsupported_parameter", f"{path}.temperature is not supported: the deployment's holds", f"{path}.temperature"
        )


def _format(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, str) or value not in _FORMATS:
        names = ", ".join(_FORMATS)
        raise DuplexError("unsupported_audio_format", f"there is no format {value!r}", param, hint=f"use one of {names}")
    return dict(_FORMATS[value])


def _response(response: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(response)
    _modalities(rest)
    _refuse_temperature(rest, "response")
    if "voice" in rest:
        rest["audio"] = {"output": {"voice": rest.pop("voice")}}
    if "max_response_output_tokens" in rest:
        rest["max_output_tokens"] = rest.pop("max_response_output_tokens")
    if isinstance(rest.get("input"), list):
        rest["input"] = [_item_in(item) if isinstance(item, Mapping) else item for item in rest["input"]]
    return rest


def _item_in(item: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(item.get("content"), list):
        return dict(item)
    names = {old: new for new, old in _CONTENT.items()}
    parts = [
        {**part, "type": names.get(str(part.get("type")), part.get("type"))} if isinstance(part, Mapping) else part
        for part in item["content"]
    ]
    return {**item, "content": parts}


def _renamed(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind: str = message["type"]
    if kind == "conversation.item.done":
        return None
    if kind == "conversation.item.added":
        kind = "conversation.item.created"
    for new, old in _RENAMED.items():
        if kind.startswith(new):
            kind = old + kind.removeprefix(new)
    changed = {**message, "type": kind}
    if "item" in changed:
        changed["item"] = _item_out(changed["item"])
    if "response" in changed:
        changed["response"] = _response_out(changed["response"])
    if "session" in changed:
        changed["session"] = _session_out(changed["session"])
    return changed


def _item_out(item: Mapping[str, Any]) -> dict[str, Any]:
    if "content" not in item:
        return dict(item)
    return {**item, "content": [{**part, "type": _CONTENT.get(part["type"], part["type"])} for part in item["content"]]}


def _response_out(response: Mapping[str, Any]) -> dict[str, Any]:
    rest = {**response, "output": [_item_out(item) for item in response["output"]]}
    modalities = rest.pop("output_modalities")
    rest["modalities"] = ["text", "audio"] if modalities == ["audio"] else modalities
    return rest


def _session_out(session: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(session)
    audio = rest.pop("audio")
    rest.pop("type")
    modalities = rest.pop("output_modalities")
    rest["modalities"] = ["text", "audio"] if modalities == ["audio"] else modalities
    rest["max_response_output_tokens"] = rest.pop("max_output_tokens")
    rest["input_audio_format"] = _format_out(audio["input"]["format"])
    rest["output_audio_format"] = _format_out(audio["output"]["format"])
    rest["input_audio_transcription"] = audio["input"]["transcription"]
    rest["turn_detection"] = audio["input"]["turn_detection"]
    rest["voice"] = audio["output"]["voice"]
    return rest


def _format_out(shown: Mapping[str, Any]) -> str:
    return next(name for name, form in _FORMATS.items() if form["type"] == shown["type"])
