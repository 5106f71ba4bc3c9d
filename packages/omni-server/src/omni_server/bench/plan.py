"""What a benchmark is to do: which servers, under which loads, for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_REQUESTS = 1_000_000
"""Most requests of one level, whatever its bounds say."""


@dataclass(frozen=True)
class Load:
    """One level of load."""

    kind: Literal["closed", "open"]
    """`closed`: a number of clients, each of which waits for its answer. `open`: arrivals that wait for nothing."""
    value: float
    """Clients, or requests a second."""

    @property
    def label(self) -> str:
        """How the level is called in tables."""
        return f"concurrency {self.value:g}" if self.kind == "closed" else f"{self.value:g} requests/s"


@dataclass(frozen=True)
class Bounds:
    """Where a level ends: at whichever bound is reached first."""

    requests: int | None = None
    """Requests for each server."""
    duration_s: float | None = None
    """Seconds in which requests may start; those that run are waited for."""

    def __post_init__(self) -> None:
        assert self.requests is not None or self.duration_s is not None, "a level must end"

    def slots(self, servers: int) -> int:
        """Return the most requests of a level that is shared by this many servers."""
        return MAX_REQUESTS if self.requests is None else min(self.requests * servers, MAX_REQUESTS)


@dataclass(frozen=True)
class BenchPlan:
    """One run of the benchmark."""

    urls: tuple[str, ...]
    """One server, or two to compare."""
    loads: tuple[Load, ...]
    bounds: Bounds
    prompts: tuple[str, ...]
    timeout_s: float = 300.0
    """Seconds for one request, from when it is sent."""
    warmup: int = 4
    """Requests to each server before the first level, which are not measured."""
    seed: int = 0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of every request. They may hold a key: they are not shown and not written."""


@dataclass(frozen=True)
class Job:
    """One request to be made."""

    number: int
    """Place in its level, from 0."""
    block: int
    """Requests of one block go to each server once, with the same prompt."""
    server: int
    """Index of the server."""
    body: Mapping[str, Any]
    """What is sent, as JSON."""
