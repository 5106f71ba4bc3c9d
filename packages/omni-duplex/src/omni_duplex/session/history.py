"""The conversation as a turn model gets it: what the user said, and of the answers what the user heard."""

from __future__ import annotations

from collections.abc import Iterable

from omni_duplex.model import Content, Message
from omni_duplex.session.state import Item, Part, Session


def messages(session: Session, items: Iterable[Item], instructions: str) -> tuple[Message, ...]:
    """Return items as messages, the instructions first."""
    found = [Message("system", (Content("text", instructions),))] if instructions else []
    names = {item.call_id: item.name for item in session.items if item.type == "function_call"}
    for item in items:
        if item.type == "function_call":
            found.append(Message("assistant", call_id=item.call_id, name=item.name, arguments=item.arguments))
        elif item.type == "function_call_output":
            text = (Content("text", item.output),)
            found.append(Message("tool", text, call_id=item.call_id, name=names.get(item.call_id, "")))
        elif content := tuple(_content(part) for part in item.content if _says_something(part)):
            assert item.role is not None, "messages have a role"
            found.append(Message(item.role, content))
    return tuple(found)


def _says_something(part: Part) -> bool:
    return bool(part.heard_text or part.audio is not None or part.image_url)


def _content(part: Part) -> Content:
    if part.type == "input_audio" and part.audio is not None:
        return Content("audio", part.text, part.audio)
    if part.type == "input_image":
        return Content("image", image_url=part.image_url)
    return Content("text", part.heard_text)
