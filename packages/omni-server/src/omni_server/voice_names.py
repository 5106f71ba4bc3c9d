"""Names of voices: what may be one, and when two are the same."""

from __future__ import annotations

import unicodedata

from omni_core.errors import RequestError

MAX_NAME_CHARS = 64
PLACEHOLDER = "default"
"""What clients send that must name a voice and do not care which."""
_INNER = frozenset(" _-.")


def fold(name: str) -> str:
    """Return what two spellings of one name have in common: NFKC, without case, without white space around."""
    folded = unicodedata.normalize("NFKC", name).strip().casefold()
    return unicodedata.normalize("NFKC", folded)


def checked_name(name: str) -> str:
    """Return a new voice's name, in NFKC.

    Raises:
        RequestError: It cannot be one; `param` is `name`.
    """
    plain = unicodedata.normalize("NFKC", name)
    hint = f"use 1 to {MAX_NAME_CHARS} letters and digits, and between them spaces, dots, dashes and underscores"
    if not plain or len(plain) > MAX_NAME_CHARS:
        raise RequestError(f"a voice's name cannot have {len(plain)} characters", param="name", hint=hint)
    for sign in plain:
        if not (sign.isalnum() or sign in _INNER or unicodedata.category(sign).startswith("M")):
            raise RequestError(f"a voice's name cannot contain {sign!r}", param="name", hint=hint)
    if plain[0] in _INNER or plain[-1] in _INNER or unicodedata.category(plain[0]).startswith("M"):
        raise RequestError("a voice's name must begin and end with a letter or a digit", param="name", hint=hint)
    if fold(plain) == PLACEHOLDER:
        raise RequestError(f"the name {plain!r} is reserved", param="name", hint="it leaves the choice of voice to the model")
    return plain
