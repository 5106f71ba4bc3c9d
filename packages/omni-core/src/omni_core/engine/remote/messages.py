"""What a worker and the head say to each other before a stage's messages flow: msgspec structs in msgpack, told apart by tag.

    worker                                  head
    Hello(version, nonce)              ->
                                       <-   Challenge(version, nonce)
    Register(proof, stage, facts, ...) ->
                                       <-   Welcome(proof, group, replica, port, ticket)

Instead of each answer there may be a Refused. A proof is an HMAC of the message under the shared token and both nonces, so the
token itself never travels, and neither side can pretend to know it.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Any, TypeVar

import msgspec

from omni_core import __version__
from omni_core.errors import ServiceError

PROTOCOL = 2
"""Number of this protocol; the head refuses any other."""
NONCE_BYTES = 16
SAME_VERSION = "install the same version of Omni for every command"
TICKET_BYTES = 32

Short = Annotated[str, msgspec.Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""What anybody may send and the log shows: one line of it, and no long one."""
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Preamble(msgspec.Struct, frozen=True):
    """What can be read of a message of any protocol."""

    protocol: int = 0
    version: Short = ""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Begin a registration."""

    nonce: Nonce
    protocol: int = PROTOCOL
    version: str = __version__


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """Answer a Hello."""

    nonce: Nonce
    protocol: int = PROTOCOL
    version: str = __version__


class Register(msgspec.Struct, frozen=True, tag=True):
    """Offer a replica of a stage."""

    proof: bytes
    stage_id: int
    replica: int
    """The replica that it was before; -1 leaves the choice to the head."""
    facts: dict[str, str]
    """What every command of the pipeline must agree on, see `omni_core.deploy.agreement`."""
    files: list[str]
    """Its deploy files, for messages."""
    host: Short
    """Name of its host, for messages."""
    host_mark: Short
    """Equal for hosts whose processes can meet in a folder, see `omni_core.engine.meeting`."""
    address: Short
    """Where its connectors can be reached."""
    pid: int
    life: Short = ""
    """Tells this replica of this worker from every other; the same when it registers again."""
    told: dict[str, dict[str, Any]] = {}
    """What it was told by operators and still obeys, see `omni_core.engine.orders`: the head may be another one than then."""
    weights: str = ""
    """Whose weights it has; empty for those of the checkpoint."""
    protocol: int = PROTOCOL
    version: str = __version__


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Take a replica in."""

    proof: bytes
    group: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    """Name of the folder where connectors of one host meet, and of this pipeline for connectors of all kinds."""
    replica: int
    port: int
    """Where the stage's messages go, at the address of the head."""
    ticket: bytes
    """What the connection to that port begins with."""
    protocol: int = PROTOCOL
    version: str = __version__


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Turn a worker away."""

    message: str
    hint: str = ""
    final: bool = True
    """Whether another try would end the same way."""
    protocol: int = PROTOCOL
    version: str = __version__


ToHead = Hello | Register
ToWorker = Challenge | Welcome | Refused

M = TypeVar("M", Register, Welcome)


def decode(data: bytes, kind: Any, who: str) -> Any:
    """Return the message in `data`.

    Raises:
        ServiceError: It is none of `kind`.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ServiceError(f"a message of {who} cannot be read: {error}", where=who) from error


def preamble(data: bytes) -> Preamble:
    """Return who speaks, whatever the rest of the message is; protocol 0 where that cannot be told."""
    try:
        return msgspec.msgpack.decode(data, type=Preamble)
    except (msgspec.MsgspecError, RecursionError):
        return Preamble()


def difference(other: Preamble) -> str:
    """Return how the other side's version differs from this one's; empty where it does not."""
    if (other.protocol, other.version) == (PROTOCOL, __version__):
        return ""
    return f"it speaks protocol {other.protocol} of Omni {other.version or '?'}, not protocol {PROTOCOL} of Omni {__version__}"


def prove(message: M, token: str, nonces: bytes) -> M:
    """Return a message with its proof.

    Args:
        message: What to prove.
        token: The shared token; empty where none is needed.
        nonces: The worker's nonce, then the head's.
    """
    return msgspec.structs.replace(message, proof=_proof(message, token, nonces))


def is_proven(message: Register | Welcome, token: str, nonces: bytes) -> bool:
    """Return whether a message's sender knows the token; takes as long for a proof that is nearly right."""
    return hmac.compare_digest(message.proof, _proof(message, token, nonces))


def _proof(message: Register | Welcome, token: str, nonces: bytes) -> bytes:
    bare = msgspec.msgpack.encode(msgspec.structs.replace(message, proof=b""))
    return hmac.new(token.encode(), nonces + bare, hashlib.sha256).digest()
