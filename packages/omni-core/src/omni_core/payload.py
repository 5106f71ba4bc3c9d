"""What travels between stages: a mapping of names to arrays and plain values, and its form as bytes.

No pickle: a header in msgpack names each array's dtype and shape, and the arrays' bytes follow, each at a multiple of 64.
Tensors of torch are taken as they are (CPU) and come back as numpy arrays, or as tensors where numpy has no such dtype.
The bytes come from another process, so nothing in the header is believed before it was held against the buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from omni_core.errors import ServiceError
from omni_core.payload_arrays import ALIGN, ArraySpec, as_bytes, checked_dtype, flat, from_bytes

Payload = Mapping[str, Any]
"""Names to numpy arrays, torch tensors, None, bool, int, float, str, bytes, and lists and mappings of these."""

_SIZE = struct.Struct("<Q")
"""How many bytes the header has; in front of it."""
_SIZE_BYTES = _SIZE.size
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_OF_A_FORM = frozenset({type(None), bool, int})
"""Types of values that belong to a form. Texts and bytes are a request's own and stay nowhere; 0.0 and -0.0 are equal."""
_FORMS_KEPT = 512
_KEPT_BYTES = 1024
"""Longest header that is kept."""

_Key = tuple[Any, ...]


class _Header(msgspec.Struct, array_like=True, frozen=True):
    values: Any
    arrays: tuple[ArraySpec, ...]


class _Sent(NamedTuple):
    """What payloads of one form have in common when they are encoded: names, dtypes, shapes and numbers."""

    front: bytes
    body: int
    offsets: tuple[int, ...]
    nbytes: int


class _Read(NamedTuple):
    """What a header says; it was held against itself, but not against a buffer."""

    flat: tuple[tuple[str, int, Any], ...] | None
    """For a mapping of arrays and plain values: names, and the number of the array, or -1 and the value."""
    values: Any
    arrays: tuple[tuple[np.dtype[Any] | None, ArraySpec], ...]
    body: int
    nbytes: int


_sent: dict[_Key, _Sent] = {}
_read: dict[bytes, _Read] = {}
"""Forms that were met before: stages hand on the same few again and again. Emptied where they would be too many."""

_encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_Header).decode


class EncodedPayload:
    """A payload as a header and a list of buffers that are not copied until they are written.

    Raises:
        ServiceError: The payload holds something that cannot travel; the message names its place.
    """

    __slots__ = ("_arrays", "_body", "_front", "_place", "_size", "buffers", "nbytes")

    buffers: list[tuple[int, memoryview]]
    """Offset from the end of the front, and bytes, of each array."""
    nbytes: int
    """Bytes of the whole payload."""

    def __init__(self, payload: Payload) -> None:
        key, arrays = _form_of(payload)
        known = _sent.get(key) if key else None
        if known is not None:
            self._front, self._body, offsets, self.nbytes = known
            self.buffers = list(zip(offsets, map(flat, arrays), strict=True))
            return
        self._encode(payload)
        if key:
            offsets = tuple(offset for offset, _ in self.buffers)
            _keep(_sent, key, _Sent(self._front, self._body, offsets, self.nbytes))

    def _encode(self, payload: Payload) -> None:
        self.buffers = []
        self._arrays: list[tuple[str, tuple[int, ...], int, int]] = []
        self._size = 0
        self._place: list[str | int] = []
        if not isinstance(payload, Mapping):
            raise ServiceError(f"a payload must be a mapping, not a {type(payload).__name__}")
        try:
            header = _encode_header((self._take(payload), self._arrays))
        except RecursionError:
            raise ServiceError("a payload is nested too deeply", hint="make it flatter; it must not contain itself") from None
        except _Unfit as error:
            raise ServiceError(f"{self._where()} {error}", hint=error.hint) from error.__cause__
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise ServiceError(f"a payload cannot be encoded: {error}", hint="integers must fit into 64 bits") from error
        self._front = _SIZE.pack(len(header)) + header
        self._body = _aligned(len(self._front))
        self.nbytes = self._body + self._size

    def _where(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self._place)
        return "payload" + "".join(steps)

    def _take(self, value: Any) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            return {"a": self._add(value)}
        if kind in _PLAIN:
            return value
        if isinstance(value, Mapping):
            found = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise _Unfit(f"has the key {key!r}", "names in a payload are strings")
                self._place.append(key)
                found[key] = self._take(item)
                self._place.pop()
            return {"m": found}
        if isinstance(value, (list, tuple)):
            items = []
            for index, item in enumerate(value):
                self._place.append(index)
                items.append(self._take(item))
                self._place.pop()
            return items
        if isinstance(value, (bool, int, float, str, bytes)):
            return value
        if isinstance(value, np.generic):
            plain = value.item()
            if type(plain) in _PLAIN:
                return plain
            value = np.asarray(value)
        return {"a": self._add(value)}

    def _add(self, value: Any) -> int:
        try:
            dtype, shape, raw = as_bytes(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise _Unfit(f"cannot travel in a payload: {error}") from error
        offset = _aligned(self._size)
        self._arrays.append((dtype, shape, offset, raw.nbytes))
        self.buffers.append((offset, raw))
        self._size = offset + raw.nbytes
        return len(self._arrays) - 1

    def pieces(self) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield (offset, bytes) of everything that has to be written; the gaps between hold nothing."""
        yield 0, self._front
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
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
        view = view.cast("B")
    try:
        form = _form_in(view)
        if form.nbytes != view.nbytes:
            raise ValueError(f"the arrays claim {form.nbytes - form.body} bytes of {view.nbytes - form.body}")
        arrays = [from_bytes(dtype, spec, view, form.body + spec.offset) for dtype, spec in form.arrays]
        if form.flat is not None:
            return {name: value if index < 0 else arrays[index] for name, index, value in form.flat}
        found = _restore(form.values, arrays)
    except (msgspec.MsgspecError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        # RuntimeError is torch's for a shape that it cannot make, and RecursionError is one.
        raise ServiceError(f"{view.nbytes} bytes are not one whole payload: {error}") from error
    if type(found) is not dict:
        raise ServiceError("a payload must be a mapping")
    return found


def _form_of(payload: Payload) -> tuple[_Key | None, list[np.ndarray[Any, Any]]]:
    """Return what a mapping of arrays and numbers has in common with others, and its arrays; no key for another one."""
    if type(payload) is not dict:
        return None, []
    key: list[Any] = []
    arrays = []
    for name, value in payload.items():
        kind = type(value)
        if kind is np.ndarray:
            key.append((name, value.dtype, value.shape))
            arrays.append(value)
        elif kind in _OF_A_FORM:
            key.append((name, kind, value))
        else:
            return None, []
    return tuple(key), arrays


def _form_in(view: memoryview) -> _Read:
    """Return what the header of a payload says."""
    if view.nbytes < _SIZE_BYTES:
        raise ValueError("the header is missing")
    (size,) = _SIZE.unpack_from(view)
    if size > view.nbytes - _SIZE_BYTES:
        raise ValueError(f"the header claims {size} bytes")
    if size > _KEPT_BYTES:
        return _read_form(view[_SIZE_BYTES : _SIZE_BYTES + size])
    header = bytes(view[_SIZE_BYTES : _SIZE_BYTES + size])
    found = _read.get(header)
    if found is None:
        found = _read_form(header)
        if found.flat is not None and all(type(value) in _OF_A_FORM for _, _, value in found.flat):
            _keep(_read, header, found)
    return found


def _read_form(data: bytes | memoryview) -> _Read:
    header = _decode_header(data)
    body = _aligned(_SIZE_BYTES + len(data))
    arrays = tuple((checked_dtype(spec), spec) for spec in header.arrays)
    end = max((spec.offset + spec.size for spec in header.arrays), default=0)
    return _Read(_flat_form(header), header.values, arrays, body, body + end)


def _flat_form(header: _Header) -> tuple[tuple[str, int, Any], ...] | None:
    values = header.values.get("m") if type(header.values) is dict and len(header.values) == 1 else None
    if type(values) is not dict:
        return None
    found: list[tuple[str, int, Any]] = []
    for name, value in values.items():
        index = value.get("a") if type(value) is dict and len(value) == 1 else None
        if type(name) is not str or not (type(value) in _PLAIN or (type(index) is int and 0 <= index < len(header.arrays))):
            return None  # `_restore` makes it, or says what is wrong
        found.append((name, -1, value) if index is None else (name, index, None))
    return tuple(found)


def _keep(forms: dict[Any, Any], key: Any, form: Any) -> None:
    if len(forms) >= _FORMS_KEPT:
        forms.clear()
    forms[key] = form


class _Unfit(Exception):
    """Say what is wrong with a value; its place is known to whoever asked."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


def _restore(value: Any, arrays: Sequence[Any]) -> Any:
    kind = type(value)
    if kind is dict:
        if len(value) != 1:
            raise ValueError("a node of the header has more than one entry")
        ((node, content),) = value.items()
        if node == "a" and type(content) is int and 0 <= content < len(arrays):
            return arrays[content]
        if node == "m" and type(content) is dict:
            found = {}
            for key, item in content.items():
                if type(key) is not str:
                    raise ValueError(f"the header has the key {key!r}")
                found[key] = item if type(item) in _PLAIN else _restore(item, arrays)
            return found
        raise ValueError(f"the header has an unknown node {node!r}")
    if kind is list:
        return [_restore(item, arrays) for item in value]
    if kind in _PLAIN:
        return value
    raise ValueError(f"the header holds a {kind.__name__}")


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
