"""A cache that holds so many results and no more; the one used longest ago goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """Results by key. What many threads ask for at the same time is made once.

    Args:
        entries: The most results to keep; 0 keeps none.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is kept under `key`, or what `make` returns now."""
        with self._lock:  # also around `make`: what it does fills a core, and two at once would not be faster
            value = self._found.pop(key) if key in self._found else make()
            if self._entries:
                self._found[key] = value
                while len(self._found) > self._entries:
                    self._found.popitem(last=False)
            return value
