"""What travels between stages: a mapping of names to arrays and plain values, and its form as bytes.

No pickle: a header in msgpack names each array's dtype and shape, and the arrays' bytes follow, each at a multiple of 64.
Tensors of torch are taken as they are (CPU) and come back as numpy arrays, or as tensors where numpy has no such dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from omni_core.errors import ServiceError

Payload = Mapping[str, Any]
"""Names to numpy arrays, torch tensors, None, bool, int, float, str, bytes, and lists and mappings of these."""

_ALIGN = 64
_TORCH_ONLY = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})


class _Array(msgspec.Struct, array_like=True, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class _Header(msgspec.Struct, array_like=True, frozen=True):
    values: Any
    arrays: tuple[_Array, ...]


class EncodedPayload:
    """A payload as a header and a list of buffers that are not copied until they are written."""

    def __init__(self, payload: Payload) -> None:
        self.buffers: list[tuple[int, memoryview]] = []
        self._arrays: list[_Array] = []
        self._size = 0
        values = self._take(payload)
        self.header = msgspec.msgpack.encode(_Header(values, tuple(self._arrays)))
        self._body = _aligned(8 + len(self.header))
        self.nbytes = self._body + self._size

    def _take(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {"m": {str(key): self._take(item) for key, item in value.items()}}
        if isinstance(value, (list, tuple)):
            return [self._take(item) for item in value]
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return value
        if isinstance(value, np.generic):
            return value.item()
        return {"a": self._take_array(value)}

    def _take_array(self, value: Any) -> int:
        dtype, shape, raw = _as_bytes(value)
        offset = _aligned(self._size)
        self._arrays.append(_Array(dtype, shape, offset, raw.nbytes))
        self.buffers.append((offset, raw))
        self._size = offset + raw.nbytes
        return len(self._arrays) - 1

    def write_into(self, target: memoryview) -> None:
        """Write the payload into `target`, which has at least `nbytes` bytes."""
        target[:8] = len(self.header).to_bytes(8, "little")
        target[8 : 8 + len(self.header)] = self.header
        for offset, raw in self.buffers:
            start = self._body + offset
            target[start : start + raw.nbytes] = raw

    def to_bytes(self) -> bytes:
        """Return the payload as one bytes object."""
        out = bytearray(self.nbytes)
        self.write_into(memoryview(out))
        return bytes(out)


def encode_payload(payload: Payload) -> bytes:
    """Return a payload as bytes."""
    return EncodedPayload(payload).to_bytes()


def decode_payload(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the payload in `data`; its arrays are views of `data`, read-only where `data` is.

    Raises:
        ServiceError: The bytes are no payload or are cut short.
    """
    view = memoryview(data)
    try:
        size = int.from_bytes(view[:8], "little")
        header = msgspec.msgpack.decode(view[8 : 8 + size], type=_Header)
        body = view[_aligned(8 + size) :]
        arrays = [_from_bytes(spec, body[spec.offset : spec.offset + spec.size]) for spec in header.arrays]
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise ServiceError(f"{view.nbytes} bytes are not a whole payload: {error}") from error
    found = _restore(header.values, arrays)
    if not isinstance(found, dict):
        raise ServiceError("a payload must be a mapping")
    return found


def _restore(value: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_restore(item, arrays) for item in value]
    if isinstance(value, dict):
        if "a" in value:
            return arrays[value["a"]]
        return {key: _restore(item, arrays) for key, item in value["m"].items()}
    return value


def _as_bytes(value: Any) -> tuple[str, tuple[int, ...], memoryview]:
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().contiguous()
        name = str(tensor.dtype).removeprefix("torch.")
        if name in _TORCH_ONLY:
            import torch

            return name, tuple(tensor.shape), _flat(tensor.reshape(-1).view(torch.uint8).numpy())
        value = tensor.numpy()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a payload cannot carry a {type(value).__name__}")
    if value.dtype.hasobject:
        raise TypeError("a payload cannot carry an array of Python objects")
    return value.dtype.str, tuple(value.shape), _flat(value)


def _flat(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _from_bytes(spec: _Array, raw: memoryview) -> Any:
    if raw.nbytes != spec.size:
        raise ValueError(f"an array of {spec.size} bytes has {raw.nbytes}")
    if spec.dtype in _TORCH_ONLY:
        import torch

        dtype = getattr(torch, spec.dtype)
        return (
            torch.frombuffer(bytearray(raw), dtype=dtype).reshape(spec.shape)
            if raw.nbytes
            else torch.empty(spec.shape, dtype=dtype)
        )
    return np.frombuffer(raw, dtype=np.dtype(spec.dtype)).reshape(spec.shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
