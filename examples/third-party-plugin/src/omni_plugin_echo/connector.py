"""A connector that writes each payload into a file of the run directory: simple, correct, and not fast."""

from __future__ import annotations

import errno
import itertools
import re
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.connector import (
    Connector,
    ConnectorEdge,
    ConnectorError,
    ConnectorFull,
    PayloadNotReady,
    PayloadTooLarge,
)
from omni_core.payload import Payload, decode_payload, encode_payload

_HANDLE = re.compile(r"[0-9a-f]{16}-[0-9]{1,18}")


class EchoFilesConnector(Connector):
    """Carry payloads as files. The handle is the file's name; whoever reads a file removes it."""

    def __init__(self, edge: ConnectorEdge, options: Mapping[str, Any]) -> None:
        super().__init__(edge, options)
        self._folder = Path(edge.run_dir) / f"echo-files-{edge.from_stage}-{edge.to_stage}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Several replicas write into one folder, and none of them may meet a name of another.
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._put: dict[str, list[Path]] = {}
        self._closed = False

    def put(self, request_id: str, sequence: int, payload: Payload, timeout_s: float) -> bytes:
        """Write a file and return its name.

        Raises:
            PayloadTooLarge: It has more than `max_payload_bytes`.
            ConnectorFull: The disk is full.
        """
        data = encode_payload(payload)
        limit = self.options.get("max_payload_bytes")
        if limit is not None and len(data) > limit:
            raise PayloadTooLarge(
                f"a payload has {len(data)} bytes, but max_payload_bytes is {limit}", where=self.edge.name, hint="raise it"
            )
        path = self._folder / f"{self._prefix}-{next(self._numbers)}"
        # Under the lock, so that a cleanup of the same request comes before the file or after it.
        with self._lock:
            self._check_open()
            known = self._put.setdefault(request_id, [])
            known[:] = [other for other in known if other.exists()]
            self._write(path, data)
            known.append(path)
        return path.name.encode()

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.write_bytes(data)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ConnectorFull(f"no room for {len(data)} bytes in {self._folder}", where=self.edge.name) from error
            raise ConnectorError(f"cannot write {path}: {error}", where=self.edge.name) from error

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Read a file and remove it. It was complete before its handle was sent, so there is nothing to wait for.

        Raises:
            PayloadNotReady: It was fetched or cleaned up before.
        """
        self._check_open()
        name = handle.decode("ascii", "replace")
        if not _HANDLE.fullmatch(name):
            raise ConnectorError(f"{handle[:40]!r} is no handle of EchoFilesConnector", where=self.edge.name)
        path = self._folder / name
        try:
            # A bytearray can be written, so the arrays in it belong to the caller.
            data = bytearray(path.read_bytes())
            path.unlink()
        except FileNotFoundError:
            raise PayloadNotReady(f"{name} was fetched or cleaned up before", where=self.edge.name) from None
        except OSError as error:
            raise ConnectorError(f"cannot read {path}: {error}", where=self.edge.name) from error
        return decode_payload(data)

    def cleanup(self, request_id: str) -> None:
        """Remove a request's files that were not fetched."""
        with self._lock:
            for path in self._put.pop(request_id, []):
                path.unlink(missing_ok=True)

    def health(self) -> Mapping[str, Any]:
        """Return how many files of this end wait to be fetched, and their size."""
        with self._lock:
            sizes = [size for paths in self._put.values() for path in paths if (size := _size(path)) is not None]
        return {"in_flight": len(sizes), "bytes_in_flight": sum(sizes)}

    def close(self) -> None:
        """Remove what was put here and not fetched."""
        with self._lock:
            self._closed = True
            requests = list(self._put)
        for request_id in requests:
            self.cleanup(request_id)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectorError("the connector is closed", where=self.edge.name)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
