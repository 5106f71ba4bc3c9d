"""The plugin of omni-connectors: what it offers to the hooks of omni-core."""

from __future__ import annotations

from collections.abc import Iterable

from omni_core.connector import ConnectorEntry
from omni_core.hookspecs import hookimpl


@hookimpl
def omni_connectors() -> Iterable[ConnectorEntry]:
    """Offer the shared-memory connector, which takes no options of its own (CN-02)."""
    return [
        ConnectorEntry(
            name="SharedMemoryConnector",
            target="omni_connectors.shm:SharedMemoryConnector",
            description="Shared memory between processes on one host",
        )
    ]
