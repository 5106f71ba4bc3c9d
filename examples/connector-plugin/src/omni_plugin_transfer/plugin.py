"""What this distribution offers to Omni. Read in every process, so it imports nothing heavy: records name their rest."""

from __future__ import annotations

from collections.abc import Iterable

from omni_core.connector import ConnectorEntry
from omni_core.hookspecs import hookimpl


@hookimpl
def omni_connectors() -> Iterable[ConnectorEntry]:
    """Offer the connector."""
    return [
        ConnectorEntry(
            name="TransferEngineConnector",
            target="omni_plugin_transfer.connector:TransferEngineConnector",
            options="omni_plugin_transfer.options:TransferEngineOptions",
            description="The sender's memory, read over TCP or RDMA, without a store between both",
            cross_host=True,
        )
    ]
