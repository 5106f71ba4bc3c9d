"""How the C library's allocator gives memory back to the system."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""glibc's numbers of the parameters of `mallopt`."""
THRESHOLD_BYTES = 128 * 1024
ARENAS = 2
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
"""Variables by which an operator says it otherwise."""


def return_large_buffers() -> bool:
    """Let buffers of audio have memory of their own, which goes back to the system with them; return whether that is so now.

    glibc begins that way, too, but raises its threshold to 32 MiB as such buffers are freed. From then on they lie among small
    objects that live longer, and under load the server grew by half a MiB in a minute.
    """
    if any(name in os.environ for name in OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    limits = ((_TRIM_THRESHOLD, THRESHOLD_BYTES), (_MMAP_THRESHOLD, THRESHOLD_BYTES), (_ARENA_MAX, ARENAS))
    taken = [mallopt(name, value) for name, value in limits]  # each one, whatever came of the one before
    return all(taken)


def return_free_pages() -> bool:
    """Give pages that hold nothing back to the system, those between objects that live too; return whether any were.

    Takes milliseconds, in which other threads may wait for memory.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):  # another C library
        return False
