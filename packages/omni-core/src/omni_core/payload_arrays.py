"""Arrays of a payload as bytes, and bytes as arrays: numpy's dtypes, and those that only torch has."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np

from omni_core.errors import ServiceError

ALIGN = 64
"""Arrays lie at multiples of this many bytes."""
_BUFFER_KINDS = "biuf"
"""Kinds of numpy dtypes whose arrays give their bytes through the buffer protocol, whatever their byte order."""
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

_Size = Annotated[int, msgspec.Meta(ge=0)]


class ArraySpec(msgspec.Struct, array_like=True, frozen=True):
    """What a header says of an array."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=_MAX_DIMS)]
    offset: _Size
    """Where it lies, from the end of the header's part on."""
    size: _Size
    """Bytes."""


def as_bytes(value: Any) -> tuple[str, tuple[int, ...], memoryview]:
    """Return the name of an array's dtype, its shape and its bytes.

    Raises:
        TypeError: It is no array, or its values are not plain bytes.
        ValueError, RuntimeError: torch cannot give its bytes.
    """
    if type(value) is np.ndarray:
        return _dtype_name(value.dtype), value.shape, flat(value)
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        name = str(tensor.dtype).removeprefix("torch.")
        if name in _TORCH_ONLY:
            import torch

            return name, tuple(tensor.shape), flat(tensor.reshape(-1).view(torch.uint8).numpy())
        value = tensor.numpy()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"it is a {type(value).__name__}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("it is a masked array, whose mask would be lost")
    return _dtype_name(value.dtype), value.shape, flat(value)


def flat(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes of an array with a plain dtype, in the order of C; a copy only where they lie otherwise."""
    if not array.size:
        return memoryview(b"")
    if array.dtype.kind in _BUFFER_KINDS and array.flags.c_contiguous and array.ndim:
        return array.data.cast("B")
    return (array if array.flags.c_contiguous else np.ascontiguousarray(array)).reshape(-1).view(np.uint8).data


def checked_dtype(spec: ArraySpec) -> np.dtype[Any] | None:
    """Return the dtype of an array, None if only torch has it, after a look whether its shape, size and place fit together.

    Raises:
        ValueError: They do not, or there is no such dtype.
    """
    dtype = None if spec.dtype in _TORCH_ONLY else _plain_dtype(spec.dtype)
    itemsize = _TORCH_ONLY[spec.dtype] if dtype is None else dtype.itemsize
    if math.prod(spec.shape) * itemsize != spec.size:
        raise ValueError(f"an array of shape {spec.shape} and dtype {spec.dtype} has {spec.size} bytes")
    if spec.offset % ALIGN:
        raise ValueError(f"an array lies at {spec.offset}")
    return dtype


def from_bytes(dtype: np.dtype[Any] | None, spec: ArraySpec, view: memoryview, start: int) -> Any:
    """Return the array at `start`, as a view; the caller knows that its bytes are there."""
    if dtype is None:
        return _torch_array(spec, view[start : start + spec.size])
    if not spec.size:
        return np.empty(spec.shape, dtype)
    array: np.ndarray[Any, Any] = np.ndarray(spec.shape, dtype, view, start)
    return array if array.flags.aligned else array.copy()


def _torch_array(spec: ArraySpec, raw: memoryview) -> Any:
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


@lru_cache(256)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    name: str = dtype.str
    if not _PLAIN_DTYPE.fullmatch(name) or not dtype.itemsize or np.dtype(name) != dtype:
        raise TypeError(f"its dtype {dtype} is not a plain one")
    return name


@lru_cache(256)
def _plain_dtype(name: str) -> np.dtype[Any]:
    if not _PLAIN_DTYPE.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not a plain dtype")
    dtype = np.dtype(name)
    if not dtype.itemsize or dtype.str != name:
        raise ValueError(f"{name!r} is not a plain dtype")
    return dtype
