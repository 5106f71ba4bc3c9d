"""The class that deploy files name; each of its two roles is a module of its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from omni_connectors.shm.receiver import Receiver
from omni_connectors.shm.sender import Sender
from omni_core.connector import Connector, ConnectorEdge, Role
from omni_core.errors import ConfigError
from omni_core.payload import Payload


class SharedMemoryConnector(Connector):
    """Carry payloads between two processes of one host in anonymous shared memory.

    Small payloads are copied out of the edge's arena by `get`, so that a payload that is kept does not keep the arena full;
    large ones have memory of their own, which `get` maps without a copy.
    """

    def __init__(self, edge: ConnectorEdge, options: Mapping[str, Any]) -> None:
        super().__init__(edge, options)
        if options:
            raise ConfigError(f"SharedMemoryConnector takes no options, but got {sorted(options)}", where=edge.name)
        _check_run_dir(edge)
        self._sender = Sender(edge) if edge.role is Role.SENDER else None
        self._receiver = Receiver(edge) if edge.role is Role.RECEIVER else None

    def put(self, request_id: str, sequence: int, payload: Payload, timeout_s: float) -> bytes:
        """Write a payload into shared memory and return its handle.

        Raises:
            ConnectorFull, PayloadTooLarge, PeerGone: As named.
        """
        assert self._sender is not None, "put is called at the sending end"
        return self._sender.put(request_id, payload, timeout_s)

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the payload of a handle.

        Raises:
            PayloadNotReady, PeerGone: As named.
        """
        assert self._receiver is not None, "get is called at the receiving end"
        return self._receiver.get(handle, timeout_s)

    def try_put(self, request_id: str, sequence: int, payload: Payload) -> bytes | None:
        """Write a payload into the arena and return its handle; None if there is no room just now."""
        assert self._sender is not None, "put is called at the sending end"
        return self._sender.try_put(request_id, payload)

    def try_get(self, handle: bytes) -> dict[str, Any] | None:
        """Return the payload of a handle, or None if its sender or its memory is not known yet.

        Raises:
            PayloadNotReady, PeerGone: As named.
        """
        assert self._receiver is not None, "get is called at the receiving end"
        return self._receiver.try_get(handle)

    def cleanup(self, request_id: str) -> None:
        """Free a request's payloads that were not fetched; they all belong to the sender."""
        if self._sender is not None:
            self._sender.cleanup(request_id)

    def health(self) -> Mapping[str, Any]:
        """Return counts of payloads, bytes and connections."""
        if self._sender is not None:
            return self._sender.health()
        assert self._receiver is not None
        return self._receiver.health()

    def close(self) -> None:
        """Close the sockets and free the memory."""
        if self._sender is not None:
            self._sender.close()
        if self._receiver is not None:
            self._receiver.close()


def _check_run_dir(edge: ConnectorEdge) -> None:
    try:
        facts = os.stat(edge.run_dir)
    except OSError as error:
        raise ConfigError(f"the run directory cannot be used: {error}", where=edge.name) from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise ConfigError(f"the run directory {edge.run_dir} is open to other users", where=edge.name, hint="give it mode 0700")
