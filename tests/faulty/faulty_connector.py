"""A plugin for the fault tests: the shared-memory connector with the faults that a test asks for while the server runs.

`WORKSPACE_FAULT` names a file. While it says `full`, no payload finds room in memory that is there already, and the kernel
gives none; while it says `drop`, the second chunk of each request is lost on its way; while it says `hold`, no stage that
starts gets ready.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omni_connectors.shm import SharedMemoryConnector, sender
from omni_core.connector import ConnectorEdge, ConnectorEntry
from omni_core.hookspecs import hookimpl

LOST = 1
PAUSE_S = 0.05


@hookimpl
def omni_connectors() -> list[ConnectorEntry]:
    """Offer the connector."""
    return [ConnectorEntry(name="FaultyConnector", target="faulty_connector:FaultyConnector")]


class FaultyConnector(SharedMemoryConnector):
    """Shared memory with faults."""

    def __init__(self, edge: ConnectorEdge, options: Mapping[str, Any]) -> None:
        while _fault() == "hold":
            time.sleep(PAUSE_S)
        super().__init__(edge, options)

    def put(self, request_id: str, sequence: int, payload: Any, timeout_s: float) -> bytes:
        """Write a payload, unless it is to go wrong."""
        fault = _fault()
        with self._full() if fault == "full" else contextlib.nullcontext():
            handle = super().put(request_id, sequence, payload, timeout_s)
        if fault == "drop" and sequence == LOST:
            self.cleanup(request_id)
        return handle

    def try_put(self, request_id: str, sequence: int, payload: Any) -> bytes | None:
        """Decline, so that every payload passes `put`."""
        return None

    @contextlib.contextmanager
    def _full(self) -> Iterator[None]:
        assert self._sender is not None
        areas = self._sender._large
        areas.idle_s = 0.0
        areas.drop_old()
        limit, (soft, hard) = sender.SLOT_LIMIT_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)
        sender.SLOT_LIMIT_BYTES = -1  # as if the arena had no slot, whatever the size
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            sender.SLOT_LIMIT_BYTES = limit


def _fault() -> str:
    try:
        return Path(os.environ["WORKSPACE_FAULT"]).read_text()
    except FileNotFoundError:
        return ""
