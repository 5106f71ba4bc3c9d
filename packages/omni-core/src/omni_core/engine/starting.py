"""The start of a pipeline's replicas: all at once, and it fails as soon as one of them does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from omni_core.engine.replicas import LocalReplica, Replica
from omni_core.engine.stage_process import StageState
from omni_core.engine.witnesses import Witnesses
from omni_core.errors import StageStartError


async def start_all(replicas: Sequence[Replica], timeout_s: float, witnesses: Witnesses) -> None:
    """Start replicas at once, and return when all are ready; the first failure ends the others' start.

    Args:
        replicas: What to start.
        timeout_s: Longest time until all are ready.
        witnesses: Who is told of a replica that is gone while others still start.

    Raises:
        StageStartError: One did not become ready, or is gone for good, or not all were ready within `timeout_s`.
    """
    tasks = [asyncio.ensure_future(replica.start()) for replica in replicas]
    pending: set[asyncio.Future[None]] = {*tasks}
    try:
        with _told_of_deaths(replicas, witnesses) as death:
            async with asyncio.timeout(timeout_s):
                while pending:
                    done, _ = await asyncio.wait({*pending, death}, return_when=asyncio.FIRST_COMPLETED)
                    pending -= done
                    for ended in (*tasks, death):  # in the order of stages: of two that failed the first one is named
                        if ended in done:
                            ended.result()
    except TimeoutError:
        late = ", ".join(replica.process.name for replica in replicas if replica.state is StageState.STARTING)
        raise StageStartError(f"stages {late} were not ready within {timeout_s:g} s", hint="raise --init-timeout") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _told_of_deaths(replicas: Sequence[Replica], witnesses: Witnesses) -> Iterator[asyncio.Future[None]]:
    """Yield what fails when a replica is gone that was ready. One that is started again counts as alive, and so does one of
    another host, whose worker may come back."""
    death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    local = {(replica.stage.stage_id, replica.number): replica for replica in replicas if isinstance(replica, LocalReplica)}

    def note(stage_id: int, number: int, reason: str) -> None:
        replica = local.get((stage_id, number))
        if replica is not None and replica.state is StageState.DEAD and not death.done():
            name = replica.process.name
            death.set_exception(StageStartError(f"stage {name} died before the others were ready: {reason}"))

    witnesses.deaths.append(note)
    try:
        yield death
    finally:
        witnesses.deaths.remove(note)
        if not death.cancel():
            death.exception()  # heard, whoever else failed at the same time
