"""What passes before a stage's messages flow: proofs that show knowledge of the token, and versions that can always be read."""

from __future__ import annotations

import msgspec
import pytest

from omni_core.engine.remote.messages import (
    PROTOCOL,
    Hello,
    Register,
    ToHead,
    Welcome,
    decode,
    difference,
    is_proven,
    preamble,
    prove,
)
from omni_core.errors import ServiceError

NONCES = b"worker's nonce.." + b"head's nonce...."


def register(**fields: object) -> Register:
    values = {"stage_id": 1, "replica": -1, "facts": {"a": "1"}, "files": [], "host": "b", "host_mark": "m", "address": "::1"}
    return Register(b"", pid=7, **{**values, **fields})  # type: ignore[arg-type]


def test_proof_holds_for_the_same_token_and_nonces_only() -> None:
    """SB-10."""
    message = prove(register(), "the token", NONCES)

    assert is_proven(message, "the token", NONCES)
    assert not is_proven(message, "another token", NONCES)
    assert not is_proven(message, "", NONCES)
    assert not is_proven(message, "the token", NONCES[::-1])


def test_changed_message_is_not_proven() -> None:
    """SB-10."""
    message = prove(register(), "the token", NONCES)

    assert not is_proven(msgspec.structs.replace(message, stage_id=0), "the token", NONCES)
    assert not is_proven(msgspec.structs.replace(message, address="10.0.0.66"), "the token", NONCES)


def test_token_is_in_no_message() -> None:
    """SB-10."""
    sent = msgspec.msgpack.encode(prove(register(), "the token", NONCES))
    answered = msgspec.msgpack.encode(prove(Welcome(b"", "g", 0, 1, b"t"), "the token", NONCES))

    assert b"the token" not in sent + answered


def test_version_of_an_unknown_message_can_be_read() -> None:
    later = msgspec.msgpack.encode({"type": "Greeting", "protocol": 99, "version": "7.0", "more": [1]})

    assert difference(preamble(later)).startswith("it speaks protocol 99 of Omni 7.0, not protocol")
    assert difference(preamble(msgspec.msgpack.encode(Hello(b"n")))) == ""


@pytest.mark.parametrize("data", [b"", b"\xc1", b"GET / HTTP/1.1\r\n", msgspec.msgpack.encode([1, 2])])
def test_what_is_no_message_has_protocol_0(data: bytes) -> None:
    assert preamble(data).protocol == 0
    assert PROTOCOL != 0


def test_message_of_a_wrong_kind_is_an_error_that_names_its_sender() -> None:
    with pytest.raises(ServiceError, match="a worker"):
        decode(msgspec.msgpack.encode(Welcome(b"", "g", 0, 1, b"t")), ToHead, "a worker")
