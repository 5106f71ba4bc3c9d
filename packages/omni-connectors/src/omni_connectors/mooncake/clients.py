"""The clients of Mooncake stores in this process: one that lends memory and one that lends none, for all edges of a store.

A client costs some 30 threads, and closing one holds the interpreter for one to three seconds.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omni_connectors.mooncake.options import MooncakeStoreOptions

Key = tuple[int, str, bool]


@dataclass
class _Shared:
    store: Any
    users: int = 0


_lock = threading.Lock()
_clients: dict[Key, _Shared] = {}


def client_key(options: MooncakeStoreOptions, lends: bool) -> Key:
    """Return what ends that can share a client have in common. A forked process has clients of its own."""
    return os.getpid(), options.model_dump_json(exclude={"setup_timeout_s"}), lends


def take_client(key: Key, make: Callable[[], Any]) -> Any:
    """Return the process's client, made by `make` if there is none; what is no client but a return code is not kept."""
    with _lock:
        shared = _clients.get(key)
        if shared is None:
            made = make()
            if isinstance(made, int):
                return made
            shared = _clients[key] = _Shared(made)
        shared.users += 1
        return shared.store


def give_client_back(key: Key, *, answers: bool) -> None:
    """Close the client behind its last user. Without an answering master it is left as it is."""
    with _lock:
        shared = _clients[key]
        shared.users -= 1
        if shared.users:
            return
        del _clients[key]
        if answers:
            shared.store.close()
        else:
            # Its end would hold the interpreter for 14 s, also at exit; one reference too many keeps it as it is.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared.store))
