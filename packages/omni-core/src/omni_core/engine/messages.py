"""The messages between the orchestrator and its stage hosts: msgspec structs, told apart by their tag.

Messages to a host are `ToHost`, messages from one `FromHost`. Payloads never travel in them, only connector handles; the two
exceptions are a request's own inputs (`Open`) and what users get (`Output`), both as bytes of `omni_core.payload`.
"""

from __future__ import annotations

import traceback
from typing import Any

import msgspec

from omni_core.connector import PeerGone
from omni_core.errors import ERROR_CLASSES, OmniError, RequestError, ServiceError, StageDeadError
from omni_core.observe.registry import FamilyChange
from omni_core.request import LoraAdapter

READER = -1
"""The `to_stage` of a request's caller: outputs have a window like chunks have."""


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error as it crosses processes."""

    kind: str
    """Name of a class in `errors.ERROR_CLASSES`."""
    message: str
    where: str = ""
    hint: str = ""
    param: str | None = None
    trace: str = ""
    """The end of the traceback, for the log and for errors at start."""

    @classmethod
    def of(cls, error: BaseException, *, where: str = "") -> Fault:
        """Return an exception as a fault; one that is not ours becomes a ServiceError that names its class."""
        trace = "".join(traceback.format_exception(error)[-8:])[-4000:]
        if isinstance(error, OmniError):
            kind = next(name for k in type(error).__mro__ if (name := k.__name__) in ERROR_CLASSES)
            return cls(kind, error.message, error.where or where, error.hint, error.param, trace)
        return cls("ServiceError", f"{type(error).__name__}: {error}", where, "", None, trace)

    def error(self) -> OmniError:
        """Return the fault as an exception that can be raised."""
        kind = ERROR_CLASSES.get(self.kind, ServiceError)
        return kind(self.message, where=self.where, hint=self.hint, param=self.param)


def request_fault(error: BaseException, *, where: str) -> Fault:
    """Return what a request's caller is told: a RequestError as it is, the server's own failures with their place.

    A connector can notice that the stage at its other end is dead before the orchestrator does; the caller is told the same.
    """
    if isinstance(error, RequestError):
        return Fault.of(error)
    if isinstance(error, PeerGone):
        return Fault(StageDeadError.__name__, error.message, where, "send it again")
    return Fault.of(error, where=where)


class Open(msgspec.Struct, frozen=True, tag=True):
    """Begin a request in a stage."""

    request_id: str
    inputs: bytes
    """Encoded payload; empty for a stage that others feed."""
    sampling: dict[str, Any]
    streaming: bool
    timeout_s: float
    """Seconds the request has left."""
    consumers: list[int]
    """Stages to hand on to; the others of the pipeline do not take part in this request."""
    outputs: bool
    """Whether the caller gets what this stage makes."""
    trace: str = ""
    """W3C `traceparent` that the stage works under; empty where nothing is traced."""
    lora: LoraAdapter | None = None
    """The adapter to apply."""


class Push(msgspec.Struct, frozen=True, tag=True):
    """Tell a consumer that a chunk can be fetched."""

    request_id: str
    from_stage: int
    sequence: int
    handle: bytes
    final: bool


class Consumed(msgspec.Struct, frozen=True, tag=True):
    """Acknowledge a chunk; goes from the consumer through the orchestrator to the producer."""

    request_id: str
    from_stage: int
    to_stage: int
    sequence: int


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget a request, whatever its state. Unknown ids are no error."""

    request_id: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """Ask the stage's runner to do something for an operator; see `control`."""

    call_id: int
    method: str
    arguments: dict[str, Any]
    timeout_s: float
    """Seconds after which it is given up."""


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Forget every request: the server that sent them is gone, and another one may come."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop the engine and leave."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Report that the stage takes requests."""

    facts: dict[str, Any]
    seconds: float


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """Report that the stage cannot start; the process ends after it."""

    fault: Fault


class Chunk(msgspec.Struct, frozen=True, tag=True):
    """Report that a chunk was put and can be fetched by its consumer."""

    request_id: str
    to_stage: int
    sequence: int
    handle: bytes
    final: bool
    finish_reason: str | None = None
    metrics: dict[str, float] = {}
    """The producer's, with its final chunk."""


class Output(msgspec.Struct, frozen=True, tag=True):
    """Carry what a final stage made for the request's caller."""

    request_id: str
    sequence: int
    payload: bytes
    """Encoded tensors."""
    text: str
    token_ids: list[int]
    finished: bool
    finish_reason: str | None = None
    metrics: dict[str, float] = {}
    reply: dict[str, Any] = {}
    """`StageOutput.reply`."""


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Report that one request failed in this stage."""

    request_id: str
    fault: Fault


class Died(msgspec.Struct, frozen=True, tag=True):
    """Report that the engine is gone; the process ends after it."""

    fault: Fault


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """Report that a worker stops: it takes no new requests, and waits for a Shutdown until those that it has are finished."""


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Show that the host's loop turns, and its load."""

    load: dict[str, Any]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Name the requests on which the stage has worked since it last said so; goes with heartbeats.

    A stage that hands nothing on before its end works for long without another message.
    """

    request_ids: list[str]


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Tell what the stage has measured since it last said so; goes with heartbeats, where there is something."""

    changes: list[FamilyChange]


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Answer a call: with what it returned, or with why it failed."""

    call_id: int
    result: Any = None
    fault: Fault | None = None


ToHost = Open | Push | Consumed | Abort | Call | Forget | Shutdown
FromHost = Ready | StartFailed | Chunk | Output | Failure | Died | Consumed | Leaving | Heartbeat | Progress | Measured | Reply
