"""The fake pipeline in real processes, and what tests do with it: send requests, read audio, wait until nothing is left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.engine.options import EngineOptions
from omni_core.engine.orchestrator import Orchestrator
from omni_core.platforms import CPU, Platform
from omni_core.request import OmniOutput, OmniRequest
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.waiting import async_wait_until


@contextlib.asynccontextmanager
async def running(
    limits: EngineOptions | None = None, *, platform: Platform = CPU, **options: Any
) -> AsyncIterator[Orchestrator]:
    """Run `fake_pipeline(**options)`; at the end it is stopped, and its run directory must be gone."""
    orchestrator = Orchestrator(fake_pipeline(**options), limits, platform=platform)
    await orchestrator.start()
    try:
        yield orchestrator
    finally:
        await orchestrator.stop(0)
        assert not os.path.exists(orchestrator.run_dir or "")


def request(seed: int = 1, count: int = 10, *, name: str | None = None, timeout_s: float = 60.0, **inputs: Any) -> OmniRequest:
    """Return a request for the audio `fakes.make_audio(seed, count)`; further inputs are those of `fakes.TokenRunner`."""
    return OmniRequest(name or f"r{seed}", {"seed": seed, "count": count, **inputs}, timeout_s=timeout_s)


async def collect(orchestrator: Orchestrator, what: OmniRequest) -> list[OmniOutput]:
    """Return every output of a request."""
    return [output async for output in orchestrator.submit(what)]


def audio(outputs: list[OmniOutput]) -> np.ndarray[Any, Any]:
    """Return the audio of outputs, float32 [samples, 1]."""
    return np.concatenate([output.data for output in outputs if output.type == "audio"])


def loads(orchestrator: Orchestrator, key: str = "requests") -> list[int]:
    """Return a number of each replica's last heartbeat, -1 where there was none."""
    return [stage.get(key, -1) for stage in orchestrator.health()["stages"]]


def states(orchestrator: Orchestrator) -> list[str]:
    """Return each replica's state."""
    return [stage["state"] for stage in orchestrator.health()["stages"]]


def pids(orchestrator: Orchestrator) -> list[int]:
    """Return each replica's process."""
    return [stage["pid"] for stage in orchestrator.health()["stages"]]


async def until_empty(orchestrator: Orchestrator) -> None:
    """Wait until no table of the orchestrator or of a ready stage holds a request, and no payload is left."""
    await async_wait_until(lambda: orchestrator.health()["requests"] == 0, "the orchestrator to forget the requests")
    health = orchestrator.health()
    assert health["queued"] == 0
    assert [stage["in_flight"] for stage in health["stages"]] == [0] * len(health["stages"])

    def empty() -> bool:
        ready = [stage for stage in orchestrator.health()["stages"] if stage["state"] == "ready"]
        return all(stage.get(key, -1) == 0 for stage in ready for key in ("requests", "aborting", "payloads", "held"))

    await async_wait_until(empty, "the stages to forget the requests")
    run_dir = Path(orchestrator.run_dir or "")
    await async_wait_until(lambda: not list(run_dir.glob("*.pa*")), "payloads to be freed")
