"""The messages of a conversation: every part is checked, and every file that one names is fetched, before a stage sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_core.chat import ChatTraits
from omni_core.errors import RequestError
from omni_server.context import ServerSettings
from omni_server.media import fetch_within, read_inline

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_FILES = 64
"""Most files of one conversation."""
FETCHES_AT_ONCE = 4

_KEYS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "refusal", "audio"}
)
_IGNORED_KEYS = frozenset({"annotations"})
"""What OpenAI's clients send back of an answer and no model reads."""
_MEDIA = {"image_url": "image", "audio_url": "audio", "video_url": "video", "input_audio": "audio"}
_TEXTS = {"text": "text", "refusal": "refusal"}
_REASONS = {
    "file": "send an image_url, input_audio, audio_url or video_url part, or the text of the file",
    "input_image": "that is a part of the Responses API: send image_url",
    "input_text": "that is a part of the Responses API: send text",
}


@dataclass
class _Source:
    """One file that a message names."""

    place: str
    source: str
    inline: bool
    """Whether it can only be base64 or a data URI, never a path or a URL."""


@dataclass
class Conversation:
    """Messages without their files, and the files by their place."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


async def read_messages(messages: Sequence[Any], traits: ChatTraits, settings: ServerSettings) -> Conversation:
    """Return a request's messages with the bytes of every file.

    Raises:
        RequestError: A message cannot be used, or a file cannot be had; `param` names the place, such as
            `messages[2].content[1].image_url`.
    """
    sources: list[_Source] = []
    found = Conversation([_message(message, f"messages[{n}]", traits, sources) for n, message in enumerate(messages)])
    if len(sources) > MAX_FILES:
        raise RequestError(f"the messages name {len(sources)} files", param="messages", hint=f"send at most {MAX_FILES}")
    found.files = await _fetch(sources, settings)
    return found


async def _fetch(sources: Sequence[_Source], settings: ServerSettings) -> dict[str, bytes]:
    """Return the files, fetched a few at a time; together they may be as long as a body."""
    room = asyncio.Semaphore(FETCHES_AT_ONCE)
    files: dict[str, bytes] = {}

    async def one(wanted: _Source) -> None:
        async with room:
            read = read_inline if wanted.inline else fetch_within
            files[wanted.place] = await read(wanted.source, settings, wanted.place)
            if sum(map(len, files.values())) > settings.max_body_bytes:
                limit = settings.max_body_bytes
                raise RequestError(f"with `{wanted.place}` the files have more than {limit} bytes", param=wanted.place)

    tasks = [asyncio.create_task(one(wanted)) for wanted in sources]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return files


def _message(message: Any, place: str, traits: ChatTraits, sources: list[_Source]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestError(f"`{place}` is no object", param=place, hint='send {"role": "user", "content": "..."}')
    given = {key: value for key, value in message.items() if value is not None and key not in _IGNORED_KEYS}
    for key in given:
        if key not in _KEYS:
            listed = ", ".join(sorted(_KEYS))
            raise RequestError(f"`{place}` has the unknown field `{key[:60]}`", param=place, hint=f"the fields are {listed}")
    role = given.get("role")
    if role not in ROLES:
        shown = f"has the role {str(role)[:60]!r}" if role is not None else "has no role"
        raise RequestError(f"`{place}` {shown}", param=f"{place}.role", hint="the roles are " + ", ".join(ROLES))
    if "audio" in given:
        given = _spoken(given, place)
    if "content" in given:
        given["content"] = _content(given["content"], f"{place}.content", traits, sources)
    elif role != "assistant" or not any(key in given for key in ("tool_calls", "refusal")):
        raise RequestError(f"`{place}` has no content", param=f"{place}.content", hint="send a text or a list of parts")
    return given


def _spoken(message: dict[str, Any], place: str) -> dict[str, Any]:
    """Return an earlier spoken answer as its text."""
    rest = {key: value for key, value in message.items() if key != "audio"}
    audio = message["audio"]
    if "content" in rest:
        return rest
    transcript = audio.get("transcript") if isinstance(audio, Mapping) else None
    if message["role"] != "assistant" or not isinstance(transcript, str):
        hint = "this server keeps no audio: send what was said as `content`"
        raise RequestError(f"`{place}.audio` cannot be looked up", param=f"{place}.audio", hint=hint)
    return {**rest, "content": transcript}


def _content(content: Any, place: str, traits: ChatTraits, sources: list[_Source]) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"`{place}` is neither a text nor a list of parts", param=place, hint='send "..." or [{...}]')
    if not content:
        raise RequestError(f"`{place}` has no parts", param=place, hint="send at least one")
    return [_part(part, f"{place}[{number}]", traits, sources) for number, part in enumerate(content)]


def _part(part: Any, place: str, traits: ChatTraits, sources: list[_Source]) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    kinds = ", ".join(["text", *_MEDIA])
    if not isinstance(kind, str) or kind not in _MEDIA | _TEXTS:
        shown = f"is of the type `{str(kind)[:60]}`" if kind is not None else "has no type"
        raise RequestError(f"`{place}` {shown}", param=place, hint=_REASONS.get(str(kind), f"the types are {kinds}"))
    if kind in _TEXTS:
        text = part.get(_TEXTS[kind])
        if not isinstance(text, str):
            raise RequestError(
                f"`{place}.{kind}` is no text", param=f"{place}.{kind}", hint='send {"type": "text", "text": "..."}'
            )
        return {"type": "text", "text": text}
    modality = _MEDIA[kind]
    place = f"{place}.{kind}"
    if modality not in traits.inputs:
        taken = ", ".join(sorted(traits.inputs))
        raise RequestError(f"the served model takes no {modality}", param=place, hint=f"it takes {taken}")
    sources.append(_source(part.get(kind), kind, place))
    return {"type": kind, kind: {"url": place}}


def _source(value: Any, kind: str, place: str) -> _Source:
    if kind == "input_audio":
        data = value.get("data") if isinstance(value, dict) else None
        if not isinstance(data, str) or not data.strip():
            hint = '{"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}'
            raise RequestError(f"`{place}` has no data", param=place, hint=hint)
        return _Source(place, data, inline=True)
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str) or not url.strip():
        hint = f'{{"type": "{kind}", "{kind}": {{"url": "https://... or data:..."}}}}'
        raise RequestError(f"`{place}` has no url", param=place, hint=hint)
    return _Source(place, url.strip(), inline=False)
