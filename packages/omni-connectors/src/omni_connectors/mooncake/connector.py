"""The class that deploy files name; each of its two roles is a module of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from omni_connectors.mooncake.inbox import Inbox
from omni_connectors.mooncake.options import MooncakeStoreOptions
from omni_connectors.mooncake.outbox import Outbox
from omni_connectors.mooncake.store import StoreClient
from omni_core.connector import Connector, ConnectorEdge, Role
from omni_core.errors import ConfigError
from omni_core.payload import Payload

logger = logging.getLogger(__name__)


class MooncakeStoreConnector(Connector):
    """Carry payloads between processes of one host or several through a Mooncake store.

    Raises:
        ConfigError: An option is wrong.
        DependencyError: Mooncake is not installed.
        StoreGone: There is no store at the given addresses.
    """

    def __init__(self, edge: ConnectorEdge, options: Mapping[str, Any]) -> None:
        super().__init__(edge, options)
        try:
            # One deploy file serves all hosts: each knows its own address.
            here = {"host": edge.address} if edge.address else {}
            known = MooncakeStoreOptions.model_validate({**here, **options})
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ConfigError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", where=f"connectors.{edge.name}") from error
        self._client = StoreClient(edge, known)
        self._outbox = Outbox(edge, self._client, known.segment) if edge.role is Role.SENDER else None
        self._inbox = Inbox(edge, self._client) if edge.role is Role.RECEIVER else None

    def put(self, request_id: str, sequence: int, payload: Payload, timeout_s: float) -> bytes:
        """Write a payload into the store and return its handle.

        Raises:
            ConnectorFull, PayloadTooLarge, StoreGone: As named.
        """
        assert self._outbox is not None, "put is called at the sending end"
        return self._outbox.put(request_id, payload, timeout_s)

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the payload of a handle and remove it from the store.

        Raises:
            PayloadNotReady, PeerGone, StoreGone: As named.
        """
        assert self._inbox is not None, "get is called at the receiving end"
        return self._inbox.get(handle, timeout_s)

    def cleanup(self, request_id: str) -> None:
        """Remove a request's payloads that were not fetched; they all belong to the sender."""
        if self._outbox is not None:
            self._outbox.cleanup(request_id)

    def health(self) -> Mapping[str, Any]:
        """Return counts of payloads and bytes, and whether the store answers."""
        end = self._outbox or self._inbox
        assert end is not None
        return end.health()

    def close(self) -> None:
        """Remove what is left and leave the store."""
        end = self._outbox or self._inbox
        assert end is not None
        end.close()
        if not self._client.close():
            logger.warning("connector %s: the Mooncake client did not end in time", self.edge.name)
