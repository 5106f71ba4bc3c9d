"""The ways that are measured. Each has a sending and a receiving side, made in the process that uses it."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker, shared_memory
from multiprocessing.connection import Client, Listener
from typing import Any, Protocol, cast

import numpy as np

from omni_core.connector import Connector, ConnectorEdge, Role
from omni_core.target import load_target

LIMIT_S = 60.0
Array = np.ndarray[Any, Any]


class Side(Protocol):
    """One side of a way. `send` returns what the receiving side needs to find the array, perhaps nothing."""

    def send(self, array: Array) -> bytes:
        """Send an array."""
        ...

    def receive(self, handle: bytes) -> Any:
        """Return the array, or something with its elements."""
        ...


@dataclass
class ConnectorSide:
    """A connector, as a stage uses it."""

    role: Role
    folder: str
    target: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        kind = cast("type[Connector]", load_target(self.target))
        self._connector = kind(ConnectorEdge("bench", 0, 1, self.role, 0, self.folder, "bench"), self.options)
        self._sequence = 0

    def send(self, array: Array) -> bytes:
        """Put a payload with the array."""
        self._sequence += 1
        return self._connector.put("bench", self._sequence, {"x": array}, LIMIT_S)

    def receive(self, handle: bytes) -> Array:
        """Get the payload."""
        return cast("Array", self._connector.get(handle, LIMIT_S)["x"])


@dataclass
class SegmentSide:
    """One named segment of shared memory for each payload, which is copied out and removed."""

    role: Role
    folder: str

    def send(self, array: Array) -> bytes:
        """Make a segment and copy the array into it."""
        segment = shared_memory.SharedMemory(create=True, size=max(1, array.nbytes))
        np.ndarray(array.shape, array.dtype, segment.buf)[:] = array
        # The receiver removes it; this process must not be told off for that at its end.
        resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
        segment.close()
        return segment.name.encode()

    def receive(self, handle: bytes) -> Array:
        """Copy the array out and remove the segment."""
        segment = shared_memory.SharedMemory(handle.decode())
        array = np.array(np.ndarray(segment.size, np.uint8, segment.buf))
        segment.close()
        segment.unlink()
        return array


@dataclass
class ZmqSide:
    """ZeroMQ over ipc, without a copy on the sending side."""

    role: Role
    folder: str

    def __post_init__(self) -> None:
        import zmq

        context = zmq.Context()
        self._socket: Any = context.socket(zmq.PUSH if self.role is Role.SENDER else zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        address = f"ipc://{self.folder}/zmq.sock"
        if self.role is Role.SENDER:
            self._socket.bind(address)
        else:
            self._socket.connect(address)

    def send(self, array: Array) -> bytes:
        """Send the array as one frame."""
        self._socket.send(array, copy=False)
        return b""

    def receive(self, handle: bytes) -> Array:
        """Receive a frame and view it."""
        return np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)


@dataclass
class TorchSide:
    """Tensors through torch.multiprocessing: shared memory for each, its descriptor over a socket."""

    role: Role
    folder: str

    def __post_init__(self) -> None:
        import multiprocessing

        # By name: nothing else of this package may come to need torch.
        self._torch: Any = importlib.import_module("torch")
        importlib.import_module("torch.multiprocessing")
        self._torch.set_num_threads(1)
        # Descriptors are passed by a service of multiprocessing, which wants both processes to know one key.
        multiprocessing.current_process().authkey = b"omni-bench"
        address = f"{self.folder}/torch.sock"
        if self.role is Role.SENDER:
            self._listener = Listener(address, "AF_UNIX")
            self._connection: Any = None
        else:
            self._connection = Client(address, "AF_UNIX")

    def send(self, array: Array) -> bytes:
        """Send the array as a tensor."""
        if self._connection is None:
            self._connection = self._listener.accept()
        from multiprocessing.reduction import ForkingPickler

        self._connection.send_bytes(ForkingPickler.dumps(self._torch.from_numpy(array).clone()))
        return b""

    def receive(self, handle: bytes) -> Any:
        """Receive a tensor."""
        return self._connection.recv()


@dataclass
class CopySide:
    """A copy into memory that was used before, in one process: what no other way can beat by much."""

    role: Role
    folder: str

    def __post_init__(self) -> None:
        self._target = np.empty(0, np.uint8)

    def send(self, array: Array) -> bytes:
        """Copy the array."""
        if self._target.nbytes != array.nbytes:
            self._target = np.ones(array.nbytes, np.uint8)
        np.copyto(self._target, array)
        return b""

    def receive(self, handle: bytes) -> Array:
        """Return the copy."""
        return self._target


@dataclass
class MessageSide:
    """Nothing but the message that every way but memcpy sends: what it costs to wake the other process."""

    role: Role
    folder: str

    def send(self, array: Array) -> bytes:
        """Leave the array where it is."""
        return b""

    def receive(self, handle: bytes) -> Array:
        """Return no array."""
        return np.empty(0, np.uint8)


MEMCPY, MESSAGE, SEGMENT = "memcpy", "message alone", "segment per payload"
BASELINES: dict[str, Callable[[Role, str], Side]] = {
    MEMCPY: CopySide,
    MESSAGE: MessageSide,
    "ZeroMQ ipc": ZmqSide,
    "torch.multiprocessing": TorchSide,
    SEGMENT: SegmentSide,
}
"""What connectors are compared with, by name."""
ALWAYS = (MEMCPY, MESSAGE)
"""What is measured in every run: no way can beat the two together."""
NEEDS = {"ZeroMQ ipc": "zmq", "torch.multiprocessing": "torch"}
"""Modules that are not everywhere."""


@dataclass(frozen=True)
class Way:
    """One way as a process is told of it."""

    name: str
    target: str = ""
    """Target of a connector; empty for a baseline."""
    options: Mapping[str, Any] | None = None

    def make(self, role: Role, folder: str) -> Side:
        """Make one side."""
        if self.target:
            return ConnectorSide(role, folder, self.target, self.options or {})
        return BASELINES[self.name](role, folder)


def new_folder(parent: str) -> str:
    """Make a private folder with a short path, which is part of the addresses of sockets."""
    folder = os.path.join(parent, secrets.token_hex(3))
    os.mkdir(folder, 0o700)
    return folder
