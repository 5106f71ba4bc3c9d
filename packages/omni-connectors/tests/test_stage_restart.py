"""Stages that are started again find each other through shared memory as before."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from omni_core.engine.orchestrator import Orchestrator
from omni_core.errors import StageDeadError
from omni_core.stage import ResolvedPipeline, RestartPolicy
from omni_core.testing.fakes import make_audio
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.running import audio, collect, loads, pids, request, until_empty
from omni_core.testing.waiting import async_wait_until

TARGET = "omni_connectors.shm:SharedMemoryConnector"


def shared_memory_pipeline(**options: Any) -> ResolvedPipeline:
    pipeline = fake_pipeline(restart=RestartPolicy("on-failure", backoff_s=0.05), **options)
    edge = replace(pipeline.stages[0].outputs[0], connector="shm", target=TARGET)
    stages = (replace(pipeline.stages[0], outputs=(edge,)), replace(pipeline.stages[1], inputs=(edge,)))
    return replace(pipeline, stages=stages)


def _is_back(orchestrator: Orchestrator, killed: int) -> bool:
    return killed not in pids(orchestrator) and bool(orchestrator.health()["healthy"])


@pytest.mark.parametrize("stage_id", [0, 1], ids=["sender", "receiver"])
def test_requests_pass_after_either_end_was_killed_in_mid_stream(stage_id: int) -> None:
    async def run() -> None:
        orchestrator = Orchestrator(shared_memory_pipeline(stream={"chunk_frames": 1}))
        await orchestrator.start()
        try:
            for seed in range(2):
                task = asyncio.create_task(collect(orchestrator, request(1, 10**6, step_s=0.005)))
                await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")

                killed = pids(orchestrator)[stage_id]
                os.kill(killed, signal.SIGKILL)
                with pytest.raises(StageDeadError):
                    await asyncio.wait_for(task, 10)
                # The other end may have told of the death before the server has noticed it, and all looks healthy still.
                await async_wait_until(partial(_is_back, orchestrator, killed), "the stage to be back")

                outputs = await asyncio.wait_for(collect(orchestrator, request(seed, 30)), 20)
                assert np.array_equal(audio(outputs), make_audio(seed, 30))
                await until_empty(orchestrator)
        finally:
            await orchestrator.stop(0)

    asyncio.run(run())
