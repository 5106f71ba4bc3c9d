"""Read items that a client puts into the conversation."""

from __future__ import annotations

from typing import Any

from omni_duplex.audio.formats import AudioFormat, Decoder
from omni_duplex.errors import DuplexError
from omni_duplex.model import Capabilities
from omni_duplex.protocol.checks import Fields, bad
from omni_duplex.session.state import Item, Part

_TYPES = ("message", "function_call", "function_call_output")
_PARTS = {
    "user": ("input_text", "input_audio", "input_image"),
    "system": ("input_text",),
    "assistant": ("output_text", "output_audio"),
}


def read_item(value: object, form: AudioFormat, capabilities: Capabilities, path: str = "item") -> Item:
    """Return an item as a session keeps it.

    Args:
        value: The object of the API.
        form: The client's format of audio.
        capabilities: What the model can take.
        path: Where it is in the message.

    Raises:
        DuplexError: It cannot be used; the field is named.
    """
    fields = Fields(value, path)
    kind = fields.choice("type", _TYPES)
    if kind is None:
        raise DuplexError("missing_required_parameter", f"{path}.type is missing", f"{path}.type")
    item = Item(fields.text("id", ""), kind)
    fields.take("object")
    fields.choice("status", ("completed", "incomplete", "in_progress"))
    if kind == "message":
        item.role = fields.choice("role", tuple(_PARTS))
        if item.role is None:
            raise DuplexError("missing_required_parameter", f"{path}.role is missing", f"{path}.role")
        item.content = _content(fields.take("content"), item, form, capabilities, fields.name("content"))
    elif kind == "function_call":
        item.name = fields.text("name", required=True)
        item.arguments = fields.text("arguments", required=True)
        item.call_id = fields.text("call_id", "")
    else:
        item.call_id = fields.text("call_id", required=True)
        item.output = fields.text("output", required=True)
    fields.done()
    if kind != "message" and not capabilities.tools:
        raise DuplexError("tools_unsupported", "this model calls no functions", f"{path}.type")
    return item


def _content(value: Any, item: Item, form: AudioFormat, capabilities: Capabilities, path: str) -> list[Part]:
    if not isinstance(value, list) or not value:
        raise bad(path, value, "a list of parts, with one at least")
    assert item.role is not None, "read_item saw to it"
    return [_part(part, _PARTS[item.role], form, capabilities, f"{path}[{index}]") for index, part in enumerate(value)]


def _part(value: Any, allowed: tuple[str, ...], form: AudioFormat, capabilities: Capabilities, path: str) -> Part:
    fields = Fields(value, path)
    kind = fields.choice("type", allowed)
    if kind is None:
        raise DuplexError("missing_required_parameter", f"{path}.type is missing", f"{path}.type")
    part = Part(kind)
    if kind in ("input_text", "output_text"):
        part.text = fields.text("text", required=True)
        if kind == "input_text" and not capabilities.text_input:
            raise DuplexError("text_only_turn_unsupported", "this model takes no text", path, hint="speak to it")
    elif kind == "input_image":
        part.image_url = _image(fields, capabilities, path)
    else:
        part.text = fields.text("transcript", "")
        data = fields.take("audio")
        if kind == "input_audio":
            part.audio = Decoder(form, capabilities.input_rate).push(data, f"{path}.audio")
            part.audio_ms = len(part.audio) * 1000 / capabilities.input_rate
    fields.done()
    return part


def _image(fields: Fields, capabilities: Capabilities, path: str) -> str:
    url: str = fields.text("image_url", required=True)
    fields.choice("detail", ("auto", "low", "high"))
    if not capabilities.image_input:
        raise DuplexError("image_input_unsupported", "this model sees nothing", path)
    if not url.startswith("data:image/"):
        raise DuplexError("invalid_value", f"{path}.image_url must be a data URI of an image", f"{path}.image_url")
    return url
