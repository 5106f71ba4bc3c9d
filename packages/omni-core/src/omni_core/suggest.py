"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_CHARS = 100
"""Characters of a name that are looked at."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return `did you mean 'x'?` for the closest of `known`, or an empty string where nothing is close."""
    names = {str(item).lower(): str(item) for item in known}
    # Comparing takes time by length, and what clients send may be megabytes.
    found = difflib.get_close_matches(str(name)[:MAX_CHARS].lower(), names, n=1, cutoff=0.6)
    return f"did you mean {names[found[0]]!r}?" if found else ""


def way_out(name: object, known: Iterable[object], noun: str) -> str:
    """Return a suggestion where one is close, and otherwise the list of `known` as `the NOUN are ...`."""
    listed = sorted(str(item) for item in known)
    return did_you_mean(name, listed) or (f"the {noun} are {', '.join(listed)}" if listed else f"there are no {noun}")
