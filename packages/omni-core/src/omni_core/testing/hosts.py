"""A pipeline whose stages are started one by one, in one test: a head and workers with real stage processes, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omni_core.engine.options import EngineOptions
from omni_core.engine.orchestrator import Orchestrator
from omni_core.engine.remote.head import Head
from omni_core.engine.remote.settings import HeadAddress, HeadOptions, WorkerOptions
from omni_core.engine.remote.worker import Worker
from omni_core.platforms import CPU
from omni_core.stage import ResolvedPipeline
from omni_core.testing.pipelines import fake_pipeline

TOKEN = "a secret of tests"
FACTS = {"pipeline": "fake"}


@dataclass
class Hosts:
    """Where the commands of one pipeline meet."""

    address: HeadAddress
    pipeline: ResolvedPipeline = field(default_factory=fake_pipeline)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def orchestrator(
        self, own: frozenset[int] = frozenset({0}), *, limits: EngineOptions | None = None, **options: Any
    ) -> Orchestrator:
        """Return a head that runs the stages `own`, not started; further options are those of HeadOptions."""
        settings = HeadOptions(own, self.address, **{"heartbeat_timeout_s": 5.0, **options})
        head = Head(self.pipeline, settings, FACTS, lambda stage_id: f"omni serve MODEL --headless --stage-id {stage_id}")
        return Orchestrator(self.pipeline, limits, head=head)

    @contextlib.asynccontextmanager
    async def head(self, own: frozenset[int] = frozenset({0}), **options: Any) -> AsyncIterator[Orchestrator]:
        """Run a head; as `orchestrator`."""
        orchestrator = self.orchestrator(own, **options)
        await orchestrator.start()
        try:
            yield orchestrator
        finally:
            await orchestrator.stop(0)

    def worker(self, stage_id: int = 1, *, facts: Mapping[str, str] | None = None, **options: Any) -> Worker:
        """Return a worker, not started; further options are those of WorkerOptions."""
        options = {"heartbeat_timeout_s": 5.0, "head_timeout_s": 20.0, **options}
        settings = WorkerOptions(stage_id, options.pop("address", self.address), **options)
        limits = EngineOptions(stage_init_timeout_s=30.0)
        return Worker(self.pipeline, settings, FACTS if facts is None else facts, limits, CPU)

    def run(self, worker: Worker) -> asyncio.Task[None]:
        """Run a worker until its task is cancelled, at the latest at the test's end."""
        task = asyncio.create_task(worker.run())
        self.tasks.append(task)
        return task


@contextlib.asynccontextmanager
async def hosts(pipeline: ResolvedPipeline | None = None, token: str = TOKEN) -> AsyncIterator[Hosts]:
    """Yield a place on loopback for a head and workers; workers that still run are ended."""
    with reserved_port() as port:
        found = Hosts(HeadAddress("127.0.0.1", port, token), pipeline or fake_pipeline())
        try:
            yield found
        finally:
            for task in found.tasks:
                task.cancel()
            await asyncio.gather(*found.tasks, return_exceptions=True)


def with_token(address: HeadAddress, token: str) -> HeadAddress:
    """Return the address with another token."""
    return replace(address, token=token)


@contextlib.contextmanager
def reserved_port(address: str = "127.0.0.1") -> Iterator[int]:
    """Yield a port that no other process is given meanwhile, and where only a head, which asks for it by number, can listen."""
    with socket.socket() as sock:
        # The kernel lets both bind, since ZeroMQ's socket has the option, too, and this one does not listen.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, 0))
        yield int(sock.getsockname()[1])
