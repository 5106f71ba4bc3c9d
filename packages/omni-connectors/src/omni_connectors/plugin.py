"""The plugin of omni-connectors: its connectors, and the command that measures connectors."""

from __future__ import annotations

from collections.abc import Iterable

from omni_core.commands import CommandEntry
from omni_core.connector import ConnectorEntry
from omni_core.hookspecs import hookimpl


@hookimpl
def omni_connectors() -> Iterable[ConnectorEntry]:
    """Offer the connectors; the one over shared memory takes no options of its own (CN-02)."""
    return [
        ConnectorEntry(
            name="SharedMemoryConnector",
            target="omni_connectors.shm:SharedMemoryConnector",
            description="Shared memory between processes on one host",
        ),
        ConnectorEntry(
            name="MooncakeStoreConnector",
            target="omni_connectors.mooncake:MooncakeStoreConnector",
            options="omni_connectors.mooncake.options:MooncakeStoreOptions",
            description="A Mooncake store, between processes on several hosts",
            cross_host=True,
        ),
    ]


@hookimpl
def omni_commands() -> Iterable[CommandEntry]:
    """Offer `omni bench connector`."""
    return [
        CommandEntry(
            name="bench connector",
            summary="measure connectors between two processes",
            target="omni_connectors.bench.command:command",
        )
    ]
