"""What an endpoint is to the benchmark: how a prompt becomes a request, and what its answer measures."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_server.bench.exchange import Exchange


@dataclass(frozen=True)
class Measure:
    """One number that an answer has."""

    name: str
    """Its key in JSON; the unit is its last part."""
    title: str
    unit: str = "s"
    decides: bool = False
    """Whether two servers are compared by it, and plots show it."""


FIRST_BYTE = Measure("first_byte_s", "first byte")
TOTAL = Measure("total_s", "total", decides=True)
GAP = Measure("gap_s", "gap between packets")


@dataclass(frozen=True)
class Digest:
    """What became of one request."""

    error: str | None = None
    """Kind of the failure; None if the answer was complete and right."""
    detail: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    """Values by the names of the endpoint's measures; empty after a failure."""
    gaps_s: tuple[float, ...] = ()
    """Seconds between packets."""


class BadAnswerError(Exception):
    """Report an answer that arrived whole and is wrong.

    Args:
        kind: Kind of the failure, for counting.
        detail: What was found.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class Endpoint(ABC):
    """One endpoint of the API."""

    name: str
    path: str
    measures: tuple[Measure, ...]
    """In the order of the table. The exchange's own come first."""
    produced: Measure
    """What answers are made of; throughput counts it."""

    @abstractmethod
    def body(self, prompt: str) -> dict[str, Any]:
        """Return the request for a prompt."""

    @abstractmethod
    def read(self, exchange: Exchange) -> Digest:
        """Return the measures of an answer with status 200.

        Raises:
            BadAnswerError: The answer is not what it should be.
        """

    def digest(self, exchange: Exchange) -> Digest:
        """Return what became of an exchange. Called after the level, so that it may take its time."""
        if exchange.failure is not None:
            return Digest(*exchange.failure)
        if exchange.status != 200:
            return Digest(f"status {exchange.status}", _message(exchange))
        try:
            read = self.read(exchange)
        except BadAnswerError as error:
            return Digest(error.kind, error.detail)
        own = {FIRST_BYTE.name: exchange.pieces[0][0] - exchange.due} if exchange.pieces else {}
        own[TOTAL.name] = exchange.end - exchange.due
        return Digest(measures={**own, **read.measures}, gaps_s=read.gaps_s)


def _message(exchange: Exchange) -> str:
    """Return what an error answer says: the message of an OpenAI error object, or the begin of the body."""
    text = b"".join(data for _, data in exchange.pieces).decode(errors="replace").strip()
    try:
        return str(json.loads(text)["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return text[:200] or "without a body"
