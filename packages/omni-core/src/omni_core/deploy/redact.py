"""Take secrets out of a configuration before others may read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"

_SECRET = re.compile(
    r"(^|[_\-.])(api_?key|access_?key|private_?key|key_?id|token|secret|password|passwd|pwd|credentials?)s?$", re.I
)
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+@")


def redact(name: str, value: Any) -> Any:
    """Return a value that may be shown: what a secret's name holds is hidden, and so are all environment variables.

    Args:
        name: Name of the field, with dots for what is inside a mapping. Below `env` every value is hidden.
        value: Plain data.
    """
    if isinstance(value, Mapping):
        return {key: redact(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(name, item) for item in value]
    parts = name.split(".")
    if value is not None and ("env" in parts[:-1] or (isinstance(value, str) and any(map(_SECRET.search, parts)))):
        return HIDDEN
    return _USER_INFO.sub(f"{HIDDEN}@", value) if isinstance(value, str) else value
