"""G.711: telephone audio, 8 bits a sample, mu-law and A-law, by tables."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np

Law = Literal["ulaw", "alaw"]
_Table = np.ndarray[Any, Any]


@cache
def decode_table(law: Law) -> _Table:
    """Return the 16-bit value of each of the 256 codes (ITU-T G.711)."""
    codes = np.arange(256)
    if law == "ulaw":
        inverted = ~codes & 0xFF
        magnitude = (((inverted & 0x0F) << 3) + 0x84 << ((inverted & 0x70) >> 4)) - 0x84
        return np.where(inverted & 0x80, -magnitude, magnitude).astype(np.int16)
    toggled = codes ^ 0x55
    exponent, mantissa = (toggled & 0x70) >> 4, (toggled & 0x0F) << 4
    magnitude = np.where(exponent == 0, mantissa + 8, (mantissa + 0x108) << np.maximum(exponent - 1, 0))
    return np.where(toggled & 0x80, magnitude, -magnitude).astype(np.int16)


@cache
def encode_table(law: Law) -> _Table:
    """Return the code of each 16-bit value, uint8 [65536], indexed by the value plus 32768: the nearest one there is."""
    values = decode_table(law).astype(np.int64)
    order = np.argsort(values, kind="stable")
    known = values[order]
    wanted = np.arange(-32768, 32768)
    right = np.clip(np.searchsorted(known, wanted), 1, len(known) - 1)
    left = right - 1
    nearest = np.where(wanted - known[left] <= known[right] - wanted, left, right)
    return order[nearest].astype(np.uint8)


def decode(data: bytes, law: Law) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return the 16-bit samples of codes."""
    samples: np.ndarray[Any, np.dtype[np.int16]] = decode_table(law)[np.frombuffer(data, np.uint8)]
    return samples


def encode(samples: np.ndarray[Any, np.dtype[np.int16]], law: Law) -> bytes:
    """Return the codes of 16-bit samples."""
    codes: bytes = encode_table(law)[samples.astype(np.int32) + 32768].tobytes()
    return codes
