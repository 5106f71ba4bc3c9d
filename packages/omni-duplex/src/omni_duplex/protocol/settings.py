"""A session's settings in the words of the realtime API: read a change, show what is in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omni_duplex.audio.formats import AudioFormat, parse_format
from omni_duplex.errors import DuplexError
from omni_duplex.model import Capabilities, SessionConfig, TurnDetection
from omni_duplex.protocol.checks import Fields, bad


@dataclass(frozen=True)
class Formats:
    """A client's audio formats."""

    input: AudioFormat = field(default_factory=AudioFormat)
    output: AudioFormat = field(default_factory=AudioFormat)


def read_patch(
    value: object, config: SessionConfig, formats: Formats, capabilities: Capabilities
) -> tuple[SessionConfig, Formats]:
    """Return the settings and formats that hold after a `session.update`. Fields that are not there stay as they are.

    Args:
        value: Its `session`.
        config: What is in force.
        formats: The formats in force.
        capabilities: What the model can do.

    Raises:
        DuplexError: A field is unknown, has a wrong value, or asks for what this server or model cannot do.
    """
    fields = Fields(value, "session")
    fields.choice("type", ("realtime",))
    model = fields.text("model", config.model)
    if model != config.model and config.model:
        raise DuplexError("model_update_unsupported", f"this session runs {config.model!r}", "session.model")
    changes: dict[str, Any] = {"model": model}
    if "instructions" in fields:
        changes["instructions"] = fields.text("instructions", "")
        if changes["instructions"] and not capabilities.instructions:
            raise DuplexError("instructions_unsupported", "this model follows no instructions", "session.instructions")
    if "output_modalities" in fields:
        changes["output_modalities"] = read_modalities(
            fields.take("output_modalities"), capabilities, "session.output_modalities"
        )
    for name in ("tools", "tool_choice"):
        if name in fields:
            changes[name] = _tools(name, fields.take(name), capabilities, fields.name(name))
    if "max_output_tokens" in fields:
        changes["max_output_tokens"] = read_max_tokens(fields, "max_output_tokens")
    if "truncation" in fields:
        changes["truncation"] = _truncation(fields.take("truncation"))
    if "extra_body" in fields:
        changes["extra"] = {**config.extra, **_mapping(fields.take("extra_body"), "session.extra_body")}
    fields.refuse("prompt", "there is no store of prompts")
    fields.refuse("reasoning", "no served model reasons aloud")
    fields.take("tracing")  # what is in force is shown as null
    fields.flag("parallel_tool_calls", True)
    if fields.take("include"):
        raise DuplexError(
            "unsupported_parameter", "session.include is not supported: transcripts have no logprobs", "session.include"
        )
    if "audio" in fields:
        formats = _audio(fields.take("audio"), config, formats, capabilities, changes)
    fields.done()
    return replace(config, **changes), formats


def _audio(
    value: object, config: SessionConfig, formats: Formats, capabilities: Capabilities, changes: dict[str, Any]
) -> Formats:
    fields = Fields(value, "session.audio")
    if "input" in fields:
        heard = Fields(fields.take("input"), "session.audio.input")
        if "format" in heard:
            formats = replace(formats, input=parse_format(heard.take("format"), "session.audio.input.format"))
        if "turn_detection" in heard:
            changes["turn_detection"] = read_turn_detection(heard.take("turn_detection"), config.turn_detection)
        if "transcription" in heard:
            changes["transcription"] = _transcription(heard.take("transcription"))
        heard.refuse("noise_reduction", "audio is taken as it comes")
        heard.done()
    if "output" in fields:
        spoken = Fields(fields.take("output"), "session.audio.output")
        if "format" in spoken:
            formats = replace(formats, output=parse_format(spoken.take("format"), "session.audio.output.format"))
        if "voice" in spoken:
            changes["voice"] = read_voice(spoken.take("voice"), capabilities, "session.audio.output.voice")
        spoken.number("speed", 1.0, 1.0, 1.0)
        spoken.done()
    fields.done()
    return formats


def read_voice(value: object, capabilities: Capabilities, param: str) -> str | None:
    """Return a voice in the model's spelling; it may be an object with an `id`.

    Raises:
        DuplexError: The model has no such voice.
    """
    name = value.get("id") if isinstance(value, Mapping) else value
    if name is None:
        return None
    if not isinstance(name, str):
        raise bad(param, value, "the name of a voice")
    if not capabilities.voices:
        return name
    for voice in capabilities.voices:
        if voice.casefold() == name.casefold():
            return voice
    raise DuplexError(
        "unknown_voice", f"there is no voice {name!r}", param, hint=f"use one of {', '.join(capabilities.voices)}"
    )


def read_modalities(value: object, capabilities: Capabilities, param: str) -> tuple[str, ...]:
    """Return what an answer consists of: `audio` (with its transcript) or `text`.

    Raises:
        DuplexError: It is neither, both, or nothing that the model can do.
    """
    if value not in (["audio"], ["text"]):
        raise bad(param, value, '["audio"] or ["text"]')
    assert isinstance(value, list), "it equals a list"
    if value == ["text"] and not capabilities.text_output:
        raise DuplexError("unsupported_modality", "this model always answers aloud", param, hint='use ["audio"]')
    return tuple(value)


def read_max_tokens(fields: Fields, name: str) -> int | None:
    """Return a limit of tokens; None for "inf".

    Raises:
        DuplexError: It is none.
    """
    value = fields.take(name)
    if value in (None, "inf"):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
        raise bad(fields.name(name), value, 'a whole number from 1 to 4096, or "inf"')
    return value


def _tools(name: str, value: object, capabilities: Capabilities, param: str) -> Any:
    if name == "tool_choice":
        if value in (None, "auto", "none", "required") or isinstance(value, Mapping):
            return value or "auto"
        raise bad(param, value, "auto, none, required, or a function")
    return read_tools(value, capabilities, param)


def read_tools(value: object, capabilities: Capabilities, param: str) -> tuple[Mapping[str, Any], ...]:
    """Return functions that the model may call.

    Raises:
        DuplexError: One is no function, or the model calls none.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise bad(param, value, "a list of functions")
    for index, tool in enumerate(value):
        fields = Fields(tool, f"{param}[{index}]")
        if (kind := fields.take("type")) != "function":
            raise DuplexError("unsupported_tool", f"{param}[{index}] is of type {kind!r}; only functions are called", param)
        fields.text("name", required=True)
        fields.text("description")
        _mapping(fields.take("parameters", {}), fields.name("parameters"))
        fields.take("strict")
        fields.done()
    if value and not capabilities.tools:
        raise DuplexError("tools_unsupported", "this model calls no functions", param, hint="leave tools out")
    return tuple(value)


def _truncation(value: object) -> Any:
    if value in ("auto", "disabled"):
        return value
    fields = Fields(value, "session.truncation")
    if fields.take("type") != "retention_ratio":
        raise bad("session.truncation", value, "auto, disabled, or a retention ratio")
    ratio = fields.number("retention_ratio", None, 0.0, 1.0)
    if ratio is None:
        raise DuplexError("missing_required_parameter", "it has no retention_ratio", "session.truncation.retention_ratio")
    fields.refuse("token_limits", "the model's own limit holds")
    fields.done()
    return {"type": "retention_ratio", "retention_ratio": ratio}


def _transcription(value: object) -> Mapping[str, Any] | None:
    if value is None:
        return None
    fields = Fields(value, "session.audio.input.transcription")
    found = {name: fields.text(name) for name in ("model", "language", "prompt")}
    fields.done()
    return {name: text for name, text in found.items() if text is not None}


def _mapping(value: object, param: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad(param, value, "an object")
    return value


def read_turn_detection(value: object, old: TurnDetection | None) -> TurnDetection | None:
    """Return how the end of a turn is found; null leaves it to the client or the model.

    Raises:
        DuplexError: A field cannot be used.
    """
    if value is None:
        return None
    fields = Fields(value, "session.audio.input.turn_detection")
    kind = fields.choice("type", ("server_vad", "semantic_vad"), old.type if old else "server_vad")
    base = old if old is not None and old.type == kind else TurnDetection(kind)
    changes: dict[str, Any] = {
        "create_response": fields.flag("create_response", base.create_response),
        "interrupt_response": fields.flag("interrupt_response", base.interrupt_response),
    }
    if kind == "semantic_vad":
        changes["eagerness"] = fields.choice("eagerness", ("low", "medium", "high", "auto"), base.eagerness)
    else:
        changes["threshold"] = fields.number("threshold", base.threshold, 0.0, 1.0)
        changes["prefix_padding_ms"] = fields.number("prefix_padding_ms", base.prefix_padding_ms, 0, 5000, whole=True)
        changes["silence_duration_ms"] = fields.number("silence_duration_ms", base.silence_duration_ms, 50, 10_000, whole=True)
        if "idle_timeout_ms" in fields:
            changes["idle_timeout_ms"] = fields.number("idle_timeout_ms", None, 5000, 30_000, whole=True)
    fields.done()
    return replace(base, **changes)


def shown_turn_detection(detection: TurnDetection | None) -> dict[str, Any] | None:
    """Return turn detection as the API has it."""
    if detection is None:
        return None
    both = {"create_response": detection.create_response, "interrupt_response": detection.interrupt_response}
    if detection.type == "semantic_vad":
        return {"type": "semantic_vad", "eagerness": detection.eagerness, **both}
    return {
        "type": "server_vad",
        "threshold": detection.threshold,
        "prefix_padding_ms": detection.prefix_padding_ms,
        "silence_duration_ms": detection.silence_duration_ms,
        "idle_timeout_ms": detection.idle_timeout_ms,
        **both,
    }


def shown_session(session_id: str, config: SessionConfig, formats: Formats, expires_at: int | None) -> dict[str, Any]:
    """Return a session as the API has it: what is in force."""
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": config.model,
        "output_modalities": list(config.output_modalities),
        "instructions": config.instructions,
        "tools": list(config.tools),
        "tool_choice": config.tool_choice,
        "max_output_tokens": config.max_output_tokens or "inf",
        "tracing": None,
        "truncation": config.truncation,
        "prompt": None,
        "expires_at": expires_at,
        "include": None,
        "audio": {
            "input": {
                "format": formats.input.shown(),
                "transcription": dict(config.transcription) if config.transcription is not None else None,
                "noise_reduction": None,
                "turn_detection": shown_turn_detection(config.turn_detection),
            },
            "output": {"format": formats.output.shown(), "voice": config.voice or "default", "speed": 1.0},
        },
    }
