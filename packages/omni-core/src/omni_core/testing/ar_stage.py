"""One AR stage on a real engine, without a server or other stages: for tests that feed a runner themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from omni_core.stage import ResolvedStage


@contextlib.asynccontextmanager
async def running_stage(stage: ResolvedStage, *, timeout_s: float = 120.0) -> AsyncIterator[Any]:
    """Run a stage's `ArRunner`; what is done with it has `timeout_s`, its start not counted."""
    from omni_core.engine.ar.runner import ArRunner  # torch and vLLM: only for tests that start an engine

    runner = ArRunner(stage)
    try:
        await runner.start()
        async with asyncio.timeout(timeout_s):
            yield runner
    finally:
        await runner.stop()
