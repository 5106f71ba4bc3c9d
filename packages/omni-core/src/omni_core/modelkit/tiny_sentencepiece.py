"""A SentencePiece model of single bytes and a handful of words, written as the protocol buffer that the library reads."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

_NORMAL, _UNKNOWN, _CONTROL, _OWN, _BYTE = 1, 2, 3, 4, 6
"""Types of pieces."""
_CONTROLS = 4
"""The first pieces: unknown, begin, end, pad."""
_UNIGRAM = 1


def write_model(path: Path, first: Sequence[str], words: Sequence[str]) -> int:
    """Write the model and return how many pieces it has.

    Args:
        path: The file.
        first: Pieces with the first ids: unknown, begin, end and pad, then those that stand for themselves alone.
        words: The last pieces, behind one for each byte; earlier ones are preferred.
    """
    pieces = [(name, -1.0, _type(index)) for index, name in enumerate(first)]
    pieces += [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    pieces += [(word, -float(index + 1), _NORMAL) for index, word in enumerate(words)]
    body = b"".join(_message(1, _piece(*piece)) for piece in pieces)
    trainer = _number(3, _UNIGRAM) + _number(4, len(pieces)) + _number(35, 1) + _number(40, 0) + _number(43, 3)
    normalizer = _text(1, "identity") + _number(3, 0) + _number(4, 0) + _number(5, 1)
    path.write_bytes(body + _message(2, trainer) + _message(3, normalizer))
    return len(pieces)


def _type(index: int) -> int:
    return _UNKNOWN if index == 0 else _CONTROL if index < _CONTROLS else _OWN


def _piece(piece: str, score: float, kind: int) -> bytes:
    return _text(1, piece) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + _number(3, kind)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _message(field: int, body: bytes) -> bytes:
    return bytes(_varint(field << 3 | 2)) + bytes(_varint(len(body))) + body


def _number(field: int, value: int) -> bytes:
    return bytes(_varint(field << 3)) + bytes(_varint(value))


def _varint(value: int) -> Iterable[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
