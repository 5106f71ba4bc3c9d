"""What carries payloads between two stages: the interface that connector plugins implement, and its record."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from omni_core.errors import ServiceError

if TYPE_CHECKING:
    from omni_core.payload import Payload


class Role(StrEnum):
    """Which end of an edge a connector serves."""

    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True)
class ConnectorEdge:
    """One end of one edge, as a connector sees it. Roles are injected; specifications in YAML have none (CN-07)."""

    name: str
    """The key under `connectors:` in the deploy file, for messages."""
    from_stage: int
    to_stage: int
    role: Role
    replica: int
    """Replica of the stage in whose process this end lives."""
    run_dir: str
    """Private folder (mode 0700) of this server run; gone when it ends."""
    run_id: str
    address: str = ""
    """Address at which other hosts reach this process; empty where the whole pipeline is on one."""


class ConnectorError(ServiceError):
    """Report a payload that could not be handed over."""


class PayloadNotReady(ConnectorError):
    """Report that the payload was not there by the deadline."""


class PeerGone(ConnectorError):
    """Report that the process at the other end is gone."""


class StoreGone(ConnectorError):
    """Report that the store between both ends is gone."""


class ConnectorFull(ConnectorError):
    """Report that there was no room by the deadline."""


class PayloadTooLarge(ConnectorError):
    """Report a payload that can never fit."""


class Connector(ABC):
    """Move payloads along one edge, in order, each exactly once.

    The sender's `put` returns a handle of a few bytes; the handle travels with the control message to the consumer's process,
    whose connector turns it back into the payload with `get`. Many requests share an edge. Calls of `put` and of `get` come
    from one thread for each end; `try_put`, `try_get`, `cleanup`, `health` and `close` may come from another one meanwhile. No
    call waits longer than its `timeout_s`. After `close`, `put` and `get` raise ConnectorError.

    `omni_core.testing.connector_suite` holds the tests that every connector passes.
    """

    def __init__(self, edge: ConnectorEdge, options: Mapping[str, Any]) -> None:
        self.edge = edge
        self.options = options

    @abstractmethod
    def put(self, request_id: str, sequence: int, payload: Payload, timeout_s: float) -> bytes:
        """Make a payload available to the consumer and return its handle. The payload may be changed afterwards.

        Raises:
            ConnectorFull, PayloadTooLarge, StoreGone: As named.
            PeerGone: There is no room, and nobody is left who would make some.
        """

    @abstractmethod
    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Return the payload of a handle and free what carried it.

        The arrays are the caller's own: they can be written, and nothing that happens at the other end changes them.

        Raises:
            PayloadNotReady: It is not there by the deadline, or never will be: it was fetched or cleaned up before.
            PeerGone, StoreGone: As named.
            ConnectorError: The handle is not one of this edge.
        """

    def try_put(self, request_id: str, sequence: int, payload: Payload) -> bytes | None:
        """Put a small payload if that needs no waiting at all, and return its handle; else None, and `put` is called.

        Asked first, in the thread that serves all requests: where it works, two changes of threads are spared. The same holds
        for `try_get`. A connector that has to ask another process for anything leaves both as they are.

        Raises:
            ConnectorError: As `put`.
        """
        return None

    def try_get(self, handle: bytes) -> dict[str, Any] | None:
        """Return the payload of a handle if that needs no waiting at all, else None; see `try_put`.

        Raises:
            ConnectorError: As `get`.
        """
        return None

    def put_batch(self, items: Sequence[tuple[str, int, Payload]], timeout_s: float) -> list[bytes]:
        """Put several payloads, given as (request id, sequence, payload), and return their handles in the same order.

        A connector whose transport has batches does better than this, which puts one after the other. One that fails ends the
        batch; what was put before it has no handle that anybody knows, and goes with the cleanup of its request.

        Raises:
            ConnectorError: As `put`.
        """
        deadline = time.monotonic() + timeout_s
        return [
            self.put(request_id, sequence, payload, max(0.0, deadline - time.monotonic()))
            for request_id, sequence, payload in items
        ]

    def get_batch(self, handles: Sequence[bytes], timeout_s: float) -> list[dict[str, Any]]:
        """Return the payloads of several handles, in the same order, and free what carried them.

        One that cannot be had ends the batch, and what was fetched before it is lost with it: give handles of one request.

        Raises:
            ConnectorError: As `get`.
        """
        deadline = time.monotonic() + timeout_s
        return [self.get(handle, max(0.0, deadline - time.monotonic())) for handle in handles]

    @abstractmethod
    def cleanup(self, request_id: str) -> None:
        """Free everything of a request that was put and not fetched, also what a `put` under way is writing.

        Called at either end, perhaps at both, and in the thread that serves all requests: a connector that has to ask someone
        else does so behind it, or waits a moment at most. Unknown ids are no error.
        """

    @abstractmethod
    def health(self) -> Mapping[str, Any]:
        """Return facts, at least `in_flight` (payloads) and `bytes_in_flight`, without waiting for anybody.

        Called with every heartbeat of a stage. What was fetched may be counted for a moment longer.
        """

    @abstractmethod
    def close(self) -> None:
        """Release every resource. May be called twice."""


@dataclass(frozen=True)
class ConnectorEntry:
    """One connector that a plugin offers (hook `omni_connectors`)."""

    name: str
    """Class name as written in deploy files: `SharedMemoryConnector`."""
    target: str
    """Target of the `Connector` subclass."""
    options: str | None = None
    """Target of a pydantic model that checks the keys of `extra`; None accepts no keys but those of the stream policy."""
    description: str = ""
    cross_host: bool = False
    """Whether its two ends may be on different hosts. Where they are, one that cannot is refused before it is used."""
