"""The objects of the realtime API as a session shows them: items, responses, parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_duplex.session.state import Item, Part, Response


def item_object(item: Item, *, audio: bool = False) -> dict[str, Any]:
    """Return an item as the API has it.

    Args:
        item: The item.
        audio: Whether to put the user's audio in, which the dialect then encodes.
    """
    shown: dict[str, Any] = {"id": item.id, "object": "realtime.item", "type": item.type, "status": item.status}
    if item.type == "message":
        return {**shown, "role": item.role, "content": [_part(part, audio=audio) for part in item.content]}
    if item.type == "function_call":
        return {**shown, "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
    return {**shown, "call_id": item.call_id, "output": item.output}


def _part(part: Part, *, audio: bool) -> dict[str, Any]:
    if part.type in ("input_text", "output_text"):
        return {"type": part.type, "text": part.text}
    if part.type == "input_image":
        return {"type": part.type, "image_url": part.image_url}
    shown: dict[str, Any] = {"type": part.type, "transcript": part.text or None}
    if part.type == "output_audio":
        shown["transcript"] = part.text
    if audio and part.audio is not None:
        shown["audio"] = part.audio
    return shown


def response_part(part: Part) -> dict[str, Any]:
    """Return a part as `response.content_part.added` and `.done` have it."""
    if part.type == "output_text":
        return {"type": "text", "text": part.text}
    return {"type": "audio", "transcript": part.text}


def response_object(
    response: Response,
    status: str,
    *,
    conversation_id: str,
    reason: str | None = None,
    error: Mapping[str, Any] | None = None,
    usage: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return a response as the API has it.

    Args:
        response: The response.
        status: `in_progress`, `completed`, `cancelled`, `incomplete` or `failed`.
        conversation_id: Id of the session's conversation.
        reason: Why it is cancelled or incomplete.
        error: Why it failed: `type`, `code` and `message`.
        usage: Tokens by kind, as in `TurnEnd.usage`; None where nothing is known yet.
    """
    details: dict[str, Any] | None = None
    if status in ("cancelled", "incomplete"):
        details = {"type": status, "reason": reason}
    elif status == "failed":
        details = {"type": status, "error": dict(error or {})}
    elif status == "completed":
        details = {"type": status}
    return {
        "object": "realtime.response",
        "id": response.id,
        "status": status,
        "status_details": details,
        "output": [item_object(item) for item in response.items],
        "conversation_id": conversation_id if response.joins else None,
        "output_modalities": list(response.modalities),
        "max_output_tokens": response.options.get("max_output_tokens") or "inf",
        "metadata": response.options.get("metadata"),
        "usage": None if usage is None else usage_object(usage),
    }


def usage_object(usage: Mapping[str, int]) -> dict[str, Any]:
    """Return tokens by kind as the API has them; what is not known counts as none."""
    kinds = {name: int(usage.get(name, 0)) for name in _KINDS}
    read = kinds["input_text_tokens"] + kinds["input_audio_tokens"]
    made = kinds["output_text_tokens"] + kinds["output_audio_tokens"]
    return {
        "total_tokens": read + made,
        "input_tokens": read,
        "output_tokens": made,
        "input_token_details": {
            "text_tokens": kinds["input_text_tokens"],
            "audio_tokens": kinds["input_audio_tokens"],
            "image_tokens": 0,
            "cached_tokens": 0,
            "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": kinds["output_text_tokens"], "audio_tokens": kinds["output_audio_tokens"]},
    }


_KINDS = ("input_text_tokens", "input_audio_tokens", "output_text_tokens", "output_audio_tokens")
