"""The conversation's items, as the client changes and looks at them."""

from __future__ import annotations

from omni_duplex.errors import DuplexError
from omni_duplex.protocol.objects import item_object
from omni_duplex.session import events as ev
from omni_duplex.session import hearing
from omni_duplex.session.state import Item, Session


def create(session: Session, event: ev.CreateItem, now: float) -> list[ev.Effect]:
    """Put an item where the client wants it; its own id is kept."""
    item = event.item
    item.id = item.id or session.new_id("item")
    if session.find(item.id) is not None or item.id == session.input_item_id:  # that one is the user's, who still speaks
        raise DuplexError("item_id_exists", f"there is an item {item.id} already", "item.id", hint="leave the id out")
    if item.type == "function_call_output" and not _was_called(session, item.call_id):
        raise DuplexError("invalid_function_call_output", f"nothing was called as {item.call_id}", "item.call_id")
    index = _index_after(session, event.previous_item_id)
    before = session.items[index - 1].id if index else None
    _check_room(session, item)
    session.items.insert(index, item)
    hearing.bound_history(session)
    return [
        ev.Send({"type": f"conversation.item.{kind}", "previous_item_id": before, "item": item_object(item)})
        for kind in ("added", "done")
    ]


def _check_room(session: Session, item: Item) -> None:
    """Refuse an item that would make the conversation larger than one may be."""
    limits = session.limits
    chars = sum(map(_chars, session.items)) + _chars(item)
    if len(session.items) >= limits.history_items or chars > limits.history_chars:
        raise DuplexError(
            "conversation_too_large",
            f"a conversation may have {limits.history_items} items and {limits.history_chars} characters of text",
            "item",
            hint="delete items that are not needed any more",
        )


def _chars(item: Item) -> int:
    return sum(len(part.text) for part in item.content) + len(item.arguments) + len(item.output)


def _was_called(session: Session, call_id: str) -> bool:
    return any(item.type == "function_call" and item.call_id == call_id for item in session.items)


def _index_after(session: Session, previous: str | None) -> int:
    if previous is None:
        return len(session.items)
    if previous == "root":
        return 0
    for index, item in enumerate(session.items):
        if item.id == previous:
            return index + 1
    raise _missing(previous, "previous_item_id")


def delete(session: Session, event: ev.DeleteItem, now: float) -> list[ev.Effect]:
    """Take an item out."""
    item = _existing(session, event.item_id)
    if item.status == "in_progress":
        raise DuplexError(
            "item_in_progress", f"item {item.id} is still being made", "item_id", hint="send response.cancel first"
        )
    session.items.remove(item)
    return [ev.Send({"type": "conversation.item.deleted", "item_id": item.id})]


def retrieve(session: Session, event: ev.RetrieveItem, now: float) -> list[ev.Effect]:
    """Show an item, the user's audio included."""
    item = _existing(session, event.item_id)
    return [ev.Send({"type": "conversation.item.retrieved", "item": item_object(item, audio=True)})]


def truncate(session: Session, event: ev.TruncateItem, now: float) -> list[ev.Effect]:
    """Cut an answer to what was heard: its audio at the time given, its words after that."""
    item = _existing(session, event.item_id)
    if item.role != "assistant" or not item.content or item.content[0].type != "output_audio":
        raise DuplexError("invalid_item", f"item {item.id} is no spoken answer", "item_id", hint="truncate an answer's item")
    if not session.capabilities.truncate:
        raise DuplexError("truncation_unsupported", "this model cannot take back what it said", "item_id")
    if event.content_index != 0:
        raise DuplexError("invalid_value", f"item {item.id} has no part {event.content_index}", "content_index", hint="use 0")
    part = item.content[0]
    if event.audio_end_ms > part.audio_ms:
        raise DuplexError(
            "audio_end_ms_too_large",
            f"item {item.id} has {part.audio_ms:.0f} ms of audio, not {event.audio_end_ms}",
            "audio_end_ms",
        )
    part.played_ms = float(event.audio_end_ms)
    part.text = part.heard_text
    part.marks = [mark for mark in part.marks if mark[0] < part.played_ms]
    cut = {"item_id": item.id, "content_index": 0, "audio_end_ms": event.audio_end_ms}
    return [ev.Send({"type": "conversation.item.truncated", **cut})]


def _existing(session: Session, item_id: str) -> Item:
    item = session.find(item_id)
    if item is None:
        raise _missing(item_id, "item_id")
    return item


def _missing(item_id: str, param: str) -> DuplexError:
    return DuplexError("item_not_found", f"there is no item {item_id}", param)
