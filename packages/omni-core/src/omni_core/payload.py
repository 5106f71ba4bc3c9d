"""What travels between stages: a mapping of names to arrays and plain values, and its form as bytes.

No pickle: a header in msgpack names each array's dtype and shape, and the arrays' bytes follow, each at a multiple of 64.
Tensors of torch are taken as they are (CPU) and come back as numpy arrays, or as tensors where numpy has no such dtype.
The bytes come from another process, so nothing in the header is believed before it was held against the buffer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from omni_core.errors import ServiceError

Payload = Mapping[str, Any]
"""Names to numpy arrays, torch tensors, None, bool, int, float, str, bytes, and lists and mappings of these."""

_ALIGN = 64
_SIZE_BYTES = 8
_KINDS = "biufcSUVmM"
"""Kinds of numpy dtypes whose values are plain bytes."""
_PLAIN_DTYPE = re.compile(rf"[<>|=][{_KINDS}][0-9]{{1,10}}(\[\w+\])?", re.ASCII)
_MAX_DIMS = 64
_TORCH_ONLY = {
    "bfloat16": 2,
    "complex32": 4,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""Dtypes that only torch has, with their size in bytes."""


class _Array(msgspec.Struct, array_like=True, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class _Header(msgspec.Struct, array_like=True, frozen=True):
    values: Any
    arrays: tuple[_Array, ...]


class EncodedPayload:
    """A payload as a header and a list of buffers that are not copied until they are written.

    Raises:
        ServiceError: The payload holds something that cannot travel; the message names its place.
    """

    def __init__(self, payload: Payload) -> None:
        self.buffers: list[tuple[int, memoryview]] = []
        self._arrays: list[_Array] = []
        self._size = 0
        if not isinstance(payload, Mapping):
            raise ServiceError(f"a payload must be a mapping, not a {type(payload).__name__}")
        try:
            values = self._take(payload, "payload")
            self.header = msgspec.msgpack.encode(_Header(values, tuple(self._arrays)))
        except RecursionError:
            raise ServiceError("a payload is nested too deeply", hint="make it flatter; it must not contain itself") from None
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise ServiceError(f"a payload cannot be encoded: {error}", hint="integers must fit into 64 bits") from error
        self._body = _aligned(_SIZE_BYTES + len(self.header))
        self.nbytes = self._body + self._size

    def _take(self, value: Any, place: str) -> Any:
        if type(value) is np.ndarray:
            return {"a": self._add(*self._bytes_of(value, place))}
        if isinstance(value, Mapping):
            return {"m": {_key(key, place): self._take(item, f"{place}.{key}") for key, item in value.items()}}
        if isinstance(value, (list, tuple)):
            return [self._take(item, f"{place}[{index}]") for index, item in enumerate(value)]
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return value
        if isinstance(value, np.generic):
            plain = value.item()
            if type(plain) in (bool, int, float, str, bytes):
                return plain
            value = np.asarray(value)
        return {"a": self._add(*self._bytes_of(value, place))}

    def _bytes_of(self, value: Any, place: str) -> tuple[str, tuple[int, ...], memoryview]:
        try:
            return _as_bytes(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ServiceError(f"{place} cannot travel in a payload: {error}") from error

    def _add(self, dtype: str, shape: tuple[int, ...], raw: memoryview) -> int:
        offset = _aligned(self._size)
        self._arrays.append(_Array(dtype, shape, offset, raw.nbytes))
        self.buffers.append((offset, raw))
        self._size = offset + raw.nbytes
        return len(self._arrays) - 1

    def pieces(self) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield (offset, bytes) of everything that has to be written; the gaps between hold nothing."""
        yield 0, len(self.header).to_bytes(_SIZE_BYTES, "little") + self.header
        for offset, raw in self.buffers:
            if raw.nbytes:
                yield self._body + offset, raw

    def write_into(self, target: memoryview) -> None:
        """Write the payload into `target`, which has at least `nbytes` bytes."""
        assert target.nbytes >= self.nbytes
        for offset, piece in self.pieces():
            target[offset : offset + len(piece)] = piece

    def to_bytes(self) -> bytes:
        """Return the payload as one bytes object."""
        out = bytearray(self.nbytes)
        self.write_into(memoryview(out))
        return bytes(out)


def encode_payload(payload: Payload) -> bytes:
    """Return a payload as bytes.

    Raises:
        ServiceError: The payload holds something that cannot travel; the message names its place.
    """
    return EncodedPayload(payload).to_bytes()


def decode_payload(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the payload in `data`; its arrays are views of `data`, read-only where `data` is.

    Raises:
        ServiceError: The bytes are not exactly one payload.
    """
    view = memoryview(data).cast("B")
    try:
        if view.nbytes < _SIZE_BYTES:
            raise ValueError("the header is missing")
        size = int.from_bytes(view[:_SIZE_BYTES], "little")
        if size > view.nbytes - _SIZE_BYTES:
            raise ValueError(f"the header claims {size} bytes")
        header = msgspec.msgpack.decode(view[_SIZE_BYTES : _SIZE_BYTES + size], type=_Header)
        body = view[_aligned(_SIZE_BYTES + size) :]
        end = max((spec.offset + spec.size for spec in header.arrays), default=0)
        if _aligned(_SIZE_BYTES + size) + end != view.nbytes:
            raise ValueError(f"the arrays claim {end} bytes of {body.nbytes}")
        arrays = [_from_bytes(spec, body) for spec in header.arrays]
        found = _restore(header.values, arrays)
    except (msgspec.MsgspecError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        # RuntimeError is torch's for a shape that it cannot make, and RecursionError is one.
        raise ServiceError(f"{view.nbytes} bytes are not one whole payload: {error}") from error
    if not isinstance(found, dict):
        raise ServiceError("a payload must be a mapping")
    return found


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise ServiceError(f"{place} has the key {key!r}", hint="names in a payload are strings")
    return key


def _restore(value: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_restore(item, arrays) for item in value]
    if isinstance(value, dict):
        if len(value) != 1:
            raise ValueError("a node of the header has more than one entry")
        ((kind, content),) = value.items()
        if kind == "a" and type(content) is int and 0 <= content < len(arrays):
            return arrays[content]
        if kind == "m" and isinstance(content, dict) and all(isinstance(key, str) for key in content):
            return {key: _restore(item, arrays) for key, item in content.items()}
        raise ValueError(f"the header has an unknown node {kind!r}")
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise ValueError(f"the header holds a {type(value).__name__}")


def _as_bytes(value: Any) -> tuple[str, tuple[int, ...], memoryview]:
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        name = str(tensor.dtype).removeprefix("torch.")
        if name in _TORCH_ONLY:
            import torch

            return name, tuple(tensor.shape), _flat(tensor.reshape(-1).view(torch.uint8).numpy())
        value = tensor.numpy()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"it is a {type(value).__name__}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("it is a masked array, whose mask would be lost")
    return _dtype_name(value.dtype), value.shape, _flat(value)


@lru_cache(256)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    name: str = dtype.str
    if not _PLAIN_DTYPE.fullmatch(name) or not dtype.itemsize or np.dtype(name) != dtype:
        raise TypeError(f"its dtype {dtype} is not a plain one")
    return name


def _flat(array: np.ndarray[Any, Any]) -> memoryview:
    if not array.size:
        return memoryview(b"")
    return (array if array.flags.c_contiguous else np.ascontiguousarray(array)).reshape(-1).view(np.uint8).data


def _from_bytes(spec: _Array, body: memoryview) -> Any:
    torch_itemsize = _TORCH_ONLY.get(spec.dtype)
    dtype = None if torch_itemsize else _plain_dtype(spec.dtype)
    itemsize = torch_itemsize or (dtype.itemsize if dtype is not None else 0)
    if len(spec.shape) > _MAX_DIMS or any(length < 0 for length in spec.shape):
        raise ValueError(f"an array has {len(spec.shape)} dimensions, or one below 0")
    if math.prod(spec.shape) * itemsize != spec.size:
        raise ValueError(f"an array of shape {spec.shape} and dtype {spec.dtype} has {spec.size} bytes")
    if spec.offset < 0 or spec.offset % _ALIGN or spec.offset + spec.size > body.nbytes:
        raise ValueError(f"an array lies at {spec.offset}, outside of the {body.nbytes} bytes")
    raw = body[spec.offset : spec.offset + spec.size]
    if dtype is None:
        return _torch_array(spec, raw)
    if not spec.size:
        return np.empty(spec.shape, dtype)
    array = np.frombuffer(raw, dtype=dtype).reshape(spec.shape)
    return array if array.flags.aligned else array.copy()


@lru_cache(256)
def _plain_dtype(name: str) -> np.dtype[Any]:
    if not _PLAIN_DTYPE.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not a plain dtype")
    dtype = np.dtype(name)
    if not dtype.itemsize or dtype.str != name:
        raise ValueError(f"{name!r} is not a plain dtype")
    return dtype


def _torch_array(spec: _Array, raw: memoryview) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ServiceError(f"an array has the dtype {spec.dtype}", hint="install torch to read it") from error
    dtype = getattr(torch, spec.dtype)
    if not spec.size:
        return torch.empty(spec.shape, dtype=dtype)
    # torch warns of memory that it may not write; its tensors have no read-only form.
    memory = bytearray(raw) if raw.readonly else raw
    return torch.frombuffer(memory, dtype=dtype).reshape(spec.shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
