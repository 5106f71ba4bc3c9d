"""What a pipeline that answers conversations tells the server and the Python API, and how a conversation travels.

A pipeline names a function of its checkpoint that returns `ChatTraits` (`PipelineConfig.chat`). It runs in the server's process
and imports neither torch nor vLLM. The conversation itself travels as JSON to the entry stage, whose process renders it; files
that belong to it travel as bytes beside it, by the place where they are named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from omni_core.errors import RequestError
from omni_core.pipeline import OutputType, PipelineConfig, parse_output_type
from omni_core.target import load_target

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo
    from omni_core.payload import Payload
    from omni_core.stage import ResolvedPipeline

CHAT = "chat"
"""Name in a prompt, and in the entry stage's payload, of the conversation: a mapping, or JSON as bytes."""
MEDIA = "media"
"""Name of the files: place in the conversation, such as `messages[0].content[1].image_url`, to bytes."""


@dataclass(frozen=True)
class ChatTraits:
    """What a pipeline that answers conversations accepts and makes."""

    inputs: frozenset[str] = frozenset({"text"})
    """What messages may hold: text, image, audio, video."""
    voices: tuple[str, ...] = ()
    """Voices of spoken answers, in the model's spelling; matched without case. Empty where it does not speak."""
    default_voice: str | None = None
    sample_rate: int = 24_000
    """Hz of spoken answers."""
    channels: int = 1
    samples_per_frame: int = 1
    """Samples of one frame of codes, which counts as an audio token."""
    transcription_prompt: str = "Transcribe the audio into text."
    """What asks the model to write down the audio before it."""
    translation_prompt: str = "Translate the speech in the audio into English text."


@dataclass(frozen=True)
class ServedChat:
    """A pipeline as somebody sees it who sends conversations."""

    traits: ChatTraits
    outputs: tuple[str, ...]
    """What answers can hold: text, audio."""
    text_stage: int
    """The stage that writes, whose sampling parameters a conversation's are."""
    stages: int
    """How many stages there are."""
    restrictions: Mapping[str, str] = field(default_factory=dict)
    """Endpoints that the pipeline shuts, with the reason."""


def served_chat(resolved: ResolvedPipeline) -> ServedChat | None:
    """Return what a pipeline's conversations can be; None for a pipeline that answers none."""
    config = resolved.config
    if config.chat is None:
        return None
    from omni_core.model_info import read_model_info

    where = f"pipeline {config.model_type!r}"
    traits = cast("Callable[[ModelInfo], ChatTraits]", load_target(config.chat, where=where))
    kinds = final_types(config)
    text = min(stage_id for stage_id, kind in kinds.items() if kind == OutputType.TEXT)
    outputs = tuple(dict.fromkeys(kinds.values()))
    found = traits(read_model_info(resolved.model))
    return ServedChat(found, outputs, text, len(config.stages), dict(config.endpoint_restrictions))


def final_types(config: PipelineConfig) -> dict[int, str]:
    """Return what users see of each final stage: text, audio, image."""
    return {
        stage.stage_id: stage.final_output_type or parse_output_type(stage.engine_output_type)[0].value
        for stage in config.stages
        if stage.final_output
    }


def wanted_stages(config: PipelineConfig, outputs: Iterable[int | str] | None) -> frozenset[int]:
    """Return the final stages that make `outputs`, given as their ids or as types of output; empty for all.

    Raises:
        RequestError: No final stage has that id or makes that.
    """
    if outputs is None:
        return frozenset()
    kinds = final_types(config)
    found: set[int] = set()
    for wanted in outputs:
        stages = {stage_id for stage_id, kind in kinds.items() if wanted in (stage_id, kind)}
        if not stages:
            made = ", ".join(dict.fromkeys(kinds.values()))
            message = f"pipeline {config.model_type!r} has no output {wanted!r}"
            raise RequestError(message, param="modalities", hint=f"it makes {made}")
        found |= stages
    return frozenset(found)


def resolve_voice(traits: ChatTraits, name: str | None, param: str = "audio.voice") -> str | None:
    """Return a voice in the model's spelling; the default one for None and for `default`.

    Raises:
        RequestError: The model has no such voice.
    """
    if name is None or name.lower() == "default":
        return traits.default_voice
    for voice in traits.voices:
        if voice.lower() == name.lower():
            return voice
    if not traits.voices:
        raise RequestError("the served model does not speak", param=param, hint="leave the voice out")
    raise RequestError(f"the voice `{name[:100]}` is unknown", param=param, hint="use one of " + ", ".join(traits.voices))


def chat_payload(prompt: Mapping[str, Any], chat: ServedChat | None) -> Payload:
    """Return a prompt with a conversation as the entry stage's payload.

    Args:
        prompt: `chat`: the conversation, a mapping with `messages` and the further fields of OpenAI's chat completions that
            say what to write, and `voice`. A list is taken for the messages. `media`: files by their place, as bytes.
        chat: The pipeline.

    Raises:
        RequestError: The pipeline answers no conversations, or this is none.
    """
    if chat is None:
        raise RequestError("the served model does not answer conversations", param=CHAT, hint="serve a model that chats")
    unknown = [str(name) for name in prompt if name not in (CHAT, MEDIA)]
    if unknown:
        raise RequestError(f"a prompt with a conversation has no field {unknown[0]!r}", param=unknown[0], hint="chat, media")
    body = prompt[CHAT]
    if isinstance(body, (list, tuple)):
        body = {"messages": list(body)}
    if not isinstance(body, Mapping):
        raise RequestError("`chat` is no mapping", param=CHAT, hint="pass {'messages': [...]}")
    if not isinstance(body.get("messages"), (list, tuple)) or not body["messages"]:
        raise RequestError("a conversation needs at least one message", param="messages", hint="pass a list of messages")
    voice = body.get("voice")
    if voice is not None and not isinstance(voice, str):
        raise RequestError("`voice` is no text", param="voice", hint="name a voice")
    chosen = resolve_voice(chat.traits, voice, "voice")
    try:
        text = json.dumps({**body, **({"voice": chosen} if chosen else {})}, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"the conversation cannot be written as JSON: {error}", param=CHAT, hint="pass plain values"
        ) from error
    return {CHAT: text, MEDIA: dict(prompt.get(MEDIA) or {})}


def join_replies(replies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the pieces of `OmniOutput.reply` as one: texts and lists joined, calls of tools complete.

    The result has `reasoning`, `tool_calls` and `logprobs` where a piece has them.
    """
    joined: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for reply in replies:
        if reply.get("reasoning"):
            joined["reasoning"] = joined.get("reasoning", "") + reply["reasoning"]
        if "logprobs" in reply:
            joined["logprobs"] = [*joined.get("logprobs", ()), *reply["logprobs"]]
        _add_calls(calls, reply.get("tool_calls") or ())
    if calls:
        joined["tool_calls"] = [calls[index] for index in sorted(calls)]
    return joined


def _add_calls(calls: dict[int, dict[str, Any]], deltas: Sequence[Mapping[str, Any]]) -> None:
    for delta in deltas:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = calls.setdefault(int(delta.get("index") or 0), empty)
        call["id"] = call["id"] or delta.get("id") or ""
        function = delta.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""
