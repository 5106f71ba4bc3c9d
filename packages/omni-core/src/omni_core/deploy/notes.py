"""Warnings of a resolution, collected so that whoever asked can show them: once in a log, or in a report of `omni config`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger(__name__)

_collected: ContextVar[list[str] | None] = ContextVar("omni_config_warnings", default=None)


def warn(message: str) -> None:
    """Add a warning to the resolution that runs now, or log it where none does. Equal ones are kept once."""
    found = _collected.get()
    if found is None:
        logger.warning("%s", message)
    elif message not in found:
        found.append(message)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yield the list that takes the warnings of what runs inside."""
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)
