"""One level of load: sends requests as its kind says, and keeps what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx

from omni_server.bench.endpoint import Digest, Endpoint
from omni_server.bench.exchange import Exchange, exchange
from omni_server.bench.plan import BenchPlan, Job, Load
from omni_server.bench.schedule import poisson_arrivals, server_order

HELD_BYTES = 512 * 1024 * 1024
"""Bytes of answers that are kept as they came. Beyond, answers are read while the level runs, which costs it CPU time."""
REFUSED_PAUSE_S = 0.1
"""Seconds that a client of a closed loop waits after it could not connect, so that a dead server is not hammered."""


@dataclass(frozen=True)
class Outcome:
    """One request and its measures. Times count from the level's begin."""

    number: int
    block: int
    server: int
    started_s: float
    """When it was sent."""
    late_s: float
    """Seconds by which it was sent later than it was due: the client's own fault."""
    ended_s: float
    digest: Digest


@dataclass
class Level:
    """A level while it runs and after."""

    plan: BenchPlan
    load: Load
    endpoint: Endpoint
    seed: int
    begin: float = 0.0
    """When it began, on `time.perf_counter`."""
    wall_s: float = 0.0
    """Seconds from its begin to its last answer."""
    cpu_share: float = 0.0
    """CPU time of this process in that time; 1 is one core."""
    sent: int = 0
    complete: bool = False
    """Whether it reached its bound; False if it was interrupted."""
    _held: list[Exchange] = field(default_factory=list)
    _held_bytes: int = 0
    _outcomes: list[Outcome] = field(default_factory=list)

    @property
    def unfinished(self) -> int:
        """Requests that were sent and had no end when the level was interrupted."""
        return self.sent - len(self._held) - len(self._outcomes)

    def outcomes(self) -> list[Outcome]:
        """Return what became of every request that ended, in the order in which they were sent."""
        self._read_held()
        return sorted(self._outcomes, key=lambda outcome: outcome.number)

    async def run(self, clients: Sequence[httpx.AsyncClient]) -> None:
        """Send the level's requests and wait for their answers, each of them at most its timeout."""
        cpu = time.process_time()
        self.begin = time.perf_counter()
        try:
            await (self._closed(clients) if self.load.kind == "closed" else self._open(clients))
            self.complete = True
        finally:
            self.wall_s = time.perf_counter() - self.begin
            self.cpu_share = (time.process_time() - cpu) / max(self.wall_s, 1e-9)

    def _jobs(self) -> Iterator[Job]:
        servers = len(self.plan.urls)
        order = server_order(servers, self.seed)
        for number in range(self.plan.bounds.slots(servers)):
            block, server = next(order)
            body = self.endpoint.body(self.plan.prompts[block % len(self.plan.prompts)])
            yield Job(number, block, server, body)

    async def _closed(self, clients: Sequence[httpx.AsyncClient]) -> None:
        jobs = self._jobs()
        duration = self.plan.bounds.duration_s
        end = float("inf") if duration is None else self.begin + duration

        async def client() -> None:
            while time.perf_counter() < end and (job := next(jobs, None)) is not None:
                record = await self._send(clients, job, None)
                if record.failure is not None and record.failure[0] == "connect":
                    await asyncio.sleep(REFUSED_PAUSE_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(int(self.load.value)):
                group.create_task(client())

    async def _open(self, clients: Sequence[httpx.AsyncClient]) -> None:
        arrivals = poisson_arrivals(self.load.value, self.plan.bounds, len(clients), self.seed)
        self.begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for arrival, job in zip(arrivals, self._jobs(), strict=False):
                due = self.begin + arrival
                await asyncio.sleep(due - time.perf_counter())
                group.create_task(self._send(clients, job, due))

    async def _send(self, clients: Sequence[httpx.AsyncClient], job: Job, due: float | None) -> Exchange:
        self.sent += 1
        record = await exchange(clients[job.server], self.endpoint.path, job, due, self.plan.timeout_s)
        self._held.append(record)
        self._held_bytes += record.size
        if self._held_bytes > HELD_BYTES:
            self._read_held()
        return record

    def _read_held(self) -> None:
        while self._held:
            record = self._held.pop()
            job, begin = record.job, self.begin
            times = record.sent - begin, record.sent - record.due, record.end - begin
            self._outcomes.append(Outcome(job.number, job.block, job.server, *times, self.endpoint.digest(record)))
        self._held_bytes = 0
