"""One client of a Mooncake store: how it is set up, what its return codes mean, and memory that it may read and write.

Every call runs in the client's own thread, since the library answers when it likes: a dead master costs 4 s for each call.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import numpy as np

from omni_connectors.mooncake.clients import client_key, give_client_back, take_client
from omni_connectors.mooncake.options import PEER_TO_PEER, MooncakeStoreOptions, split_address
from omni_core.connector import ConnectorEdge, ConnectorError, ConnectorFull, PayloadNotReady, PeerGone, Role, StoreGone
from omni_core.errors import DeadlineError, DependencyError, OmniError, ServiceError
from omni_core.worker_thread import WorkerThread

T = TypeVar("T")

FULL, NOT_COMPLETE, NOT_FOUND, TRANSFER_FAILED, NO_MASTER = -200, -703, -704, -800, -900
_MEANING: dict[int, tuple[type[ConnectorError], str]] = {
    FULL: (ConnectorFull, "there is no room"),
    NOT_COMPLETE: (PayloadNotReady, "it is not complete"),
    NOT_FOUND: (PayloadNotReady, "it was fetched or cleaned up before, or the store was started again"),
    TRANSFER_FAILED: (PeerGone, "the process that holds it does not answer"),
    NO_MASTER: (StoreGone, "the store does not answer"),
}
_SETTINGS = {"MC_STORE_CLIENT_SETUP_RETRIES": "1", "MC_RPC_CONNECT_TIMEOUT_MS": "1000", "MC_LOG_LEVEL": "ERROR"}
"""Set where the operator has not: by default a set-up without a master takes 92 s."""
PROBE_S = 1.0
RETRY_S = 0.25
CLOSE_S = 5.0
STAGING_BYTES = 2**20
"""Payloads up to this size share one registered buffer; larger ones have their own for the call."""
DOUBT_S = 120.0
"""How long memory of a failed transfer is kept, since the library may still be at it. It gives up after 60 s."""


def refuse(code: int, what: str, edge: ConnectorEdge) -> NoReturn:
    """Raise the error that a return code of the store stands for."""
    kind, reason = _MEANING.get(code, (ConnectorError, "the store refuses"))
    raise kind(f"{what}: {reason} (code {code} of Mooncake)", where=edge.name)


def check_reachable(options: MooncakeStoreOptions) -> str | None:
    """Return what is wrong with the store's addresses, or None if something accepts connections at each."""
    addresses = {"master": options.master, "metadata_server": options.metadata_server}
    for name, address in addresses.items():
        if address == PEER_TO_PEER:
            continue
        try:
            socket.create_connection(split_address(address), PROBE_S).close()
        except OSError as error:
            return f"nothing answers at {name} {address}: {error.strerror or error}"
    return None


class StoreClient:
    """A client of the store, used from one thread of its own. A receiving end lends the store no memory.

    Raises:
        DependencyError: Mooncake is not installed or cannot be loaded.
        StoreGone: The store was not there within `setup_timeout_s`.
    """

    def __init__(self, edge: ConnectorEdge, options: MooncakeStoreOptions) -> None:
        self._edge = edge
        self._options = options
        self._segment = options.segment if edge.role is Role.SENDER else 0
        self._key = client_key(options, self._segment > 0)
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            from mooncake import store
        except ImportError as error:
            raise DependencyError(
                f"connector {edge.name!r} between stages {edge.from_stage} and {edge.to_stage} needs Mooncake: {error}",
                where=f"connectors.{edge.name}",
                hint="pip install 'omni-connectors[mooncake]'; Debian and Ubuntu: apt-get install libibverbs1",
            ) from error
        self._library: Any = store
        self.worker = WorkerThread(f"the Mooncake client of edge {edge.from_stage} to {edge.to_stage}")
        self._closing = False
        self.reachable = True
        """Whether the master answered the last call."""
        self._doubtful: deque[tuple[float, np.ndarray[Any, Any]]] = deque()
        self._staging: np.ndarray[Any, Any] | None = None
        try:
            self.store: Any = self._set_up()
        except BaseException:  # the thread ends whatever went wrong; raised again
            self.worker.close(0.0)
            raise
        self.placement: Any = store.ReplicateConfig()
        self.placement.replica_num = 1
        # Without the pin a full store silently throws away what nobody has fetched yet.
        self.placement.with_hard_pin = True
        self.placement.preferred_segment = self.store.get_hostname()

    def _set_up(self) -> Any:
        """Return the library's client once the store is there; try again until the deadline."""
        deadline = time.monotonic() + self._options.setup_timeout_s
        while True:
            fault = check_reachable(self._options)
            if fault is None:
                try:
                    found = self.worker.call(self._try_set_up, deadline - time.monotonic())
                except DeadlineError:
                    raise self._not_there("it did not answer") from None
                if not isinstance(found, int):
                    return found
                fault = f"set-up ended with code {found} of Mooncake"
            if time.monotonic() + RETRY_S > deadline:
                raise self._not_there(fault)
            time.sleep(RETRY_S)

    def _try_set_up(self) -> Any:
        return take_client(self._key, self._make_client)

    def _make_client(self) -> Any:
        options, store = self._options, self._library.MooncakeDistributedStore()
        code = store.setup(
            options.host,
            options.metadata_server,
            self._segment,
            options.localbuf,
            options.proto,
            options.rdma,
            options.master,
        )
        return store if code == 0 else code

    def _not_there(self, fault: str) -> StoreGone:
        edge = self._edge
        return StoreGone(
            f"edge {edge.from_stage} to {edge.to_stage}: no Mooncake store within {self._options.setup_timeout_s:g} s: {fault}",
            where=f"connectors.{edge.name}",
            hint="start mooncake_master there, or correct master and metadata_server in `extra`",
        )

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what `function` returns, called in the client's thread.

        Raises:
            StoreGone: It did not end within `timeout_s`.
            ConnectorError: The client is closed.
        """
        try:
            return self.worker.call(function, timeout_s)
        except DeadlineError as error:
            raise StoreGone(
                f"{error.message}; the store at {self._options.master} is slow or gone", where=self._edge.name
            ) from None
        except OmniError as error:
            if isinstance(error, ConnectorError) or not isinstance(error, ServiceError):
                raise
            raise ConnectorError(error.message, where=self._edge.name) from error

    def note(self, code: int) -> int:
        """Remember from a return code whether the master answers, and return the code."""
        self.reachable = code != NO_MASTER
        return code

    @contextmanager
    def memory(self, nbytes: int, *, keep: bool) -> Iterator[np.ndarray[Any, Any]]:
        """Yield registered memory; for use in the client's thread.

        Args:
            nbytes: How much.
            keep: The memory outlives the block, in the hands of the caller: never the shared buffer.
        """
        self._drop_doubtful()
        shared = nbytes <= STAGING_BYTES and not keep
        if shared and self._staging is not None:
            memory = self._staging
        else:
            memory = np.empty(STAGING_BYTES if shared else nbytes, np.uint8)
            code = self.store.register_buffer(memory.ctypes.data, memory.nbytes)
            if code != 0:
                # It writes the place into the metadata server, whose absence it reports as a wrong parameter.
                gone = check_reachable(self._options) is not None
                refuse(
                    self.note(NO_MASTER if gone else code), f"{memory.nbytes} bytes of memory cannot be registered", self._edge
                )
            if shared:
                self._staging = memory
        try:
            yield memory[:nbytes]
        except PeerGone:
            self._doubtful.append((time.monotonic(), memory))
            if shared:
                self._staging = None
            raise
        except BaseException:  # the memory is given back whatever ended it; raised again
            if not shared:
                self.store.unregister_buffer(memory.ctypes.data)
            raise
        if not shared:
            self.store.unregister_buffer(memory.ctypes.data)

    def _drop_doubtful(self) -> None:
        while self._doubtful and self._doubtful[0][0] + DOUBT_S < time.monotonic():
            self.store.unregister_buffer(self._doubtful.popleft()[1].ctypes.data)

    def close(self) -> bool:
        """Leave the store; return whether that ended in time. What hangs in the library ends with the process."""
        if not self._closing:
            self._closing = True
            self.worker.start(self._leave)
        return self.worker.close(CLOSE_S)

    def _leave(self) -> None:
        if self._staging is not None:
            self.store.unregister_buffer(self._staging.ctypes.data)
            self._staging = None
        give_client_back(self._key, answers=check_reachable(self._options) is None)
