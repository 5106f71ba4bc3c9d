"""Look at events through the types of a client library."""

from __future__ import annotations

from typing import Any


def unknown_fields(value: Any, path: str = "") -> set[str]:
    """Return the dotted names of fields that a parsed event has and the library's classes do not list."""
    if isinstance(value, list):
        return {name for item in value for name in unknown_fields(item, path)}
    if not hasattr(value, "model_extra"):
        return set()
    found = {f"{path}.{name}" for name in value.model_extra or {}}
    for name in type(value).model_fields:
        found |= unknown_fields(getattr(value, name), f"{path}.{name}")
    return found
