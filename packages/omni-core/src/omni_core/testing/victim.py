"""A server made to be killed: `python -m omni_core.testing.victim PHASE` goes as far as PHASE, prints its run directory, waits.

The phases are `preload` (the fork server still imports), `start` (a stage still loads), `idle` and `request`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

from omni_core.engine.orchestrator import Orchestrator
from omni_core.engine.stage_process import StageState
from omni_core.request import OmniRequest
from omni_core.stage import ResolvedPipeline
from omni_core.testing.pipelines import fake_pipeline

LONG_S = 600.0


async def run(phase: str) -> None:
    """Get as far as `phase` and wait."""
    slow = {1: {"sleep_s": LONG_S}} if phase == "start" else {}
    pipeline = fake_pipeline(engine_args=slow)
    if phase == "preload":
        stages = tuple(replace(stage, preload=("omni_core.testing.slow_module",)) for stage in pipeline.stages)
        pipeline = ResolvedPipeline(pipeline.config, pipeline.model, stages, pipeline.async_chunk, pipeline.platform)
    orchestrator = Orchestrator(pipeline)
    starting = asyncio.create_task(orchestrator.start())
    if phase == "start":
        found: list[dict[str, Any]] = []
        while not (found and all(s["pid"] for s in found) and any(s["state"] == StageState.READY for s in found)):
            await asyncio.sleep(0.01)
            found = orchestrator.health()["stages"]
    elif phase == "preload":
        while orchestrator.run_dir is None:
            await asyncio.sleep(0.01)
    else:
        await starting
    if phase == "request":
        outputs = orchestrator.submit(OmniRequest("r", {"seed": 1, "count": 10**6, "step_s": 0.01}))
        await anext(outputs)
    sys.stdout.write(f"{orchestrator.run_dir}\n")
    sys.stdout.flush()
    await asyncio.sleep(LONG_S)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
