"""The start of a stage's process, where it is given up half way."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import pytest

from omni_core.engine.channel import Channel, connect
from omni_core.engine.edge import Place
from omni_core.engine.local_process import LocalProcess
from omni_core.engine.messages import ToHost
from omni_core.engine.run_dir import RunDir
from omni_core.errors import StageStartError
from omni_core.testing.pipelines import fake_pipeline

pytestmark = pytest.mark.anyio


async def test_process_that_connects_as_its_start_is_given_up_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold its connection for as long as the server lives."""
    run_dir = RunDir.create()
    stage = fake_pipeline().stages[0]
    place = Place(0, run_dir.path, run_dir.run_id)
    context = multiprocessing.get_context("spawn")
    process = LocalProcess(stage, 0, run_dir, place, context, {}, lambda *_: None, lambda _: None, silence_s=60.0)
    connected: list[Channel[Any]] = []

    async def fork(path: str, timeout_s: float) -> None:
        connected.append(await connect(path, ToHost, "the server"))
        await asyncio.Event().wait()

    monkeypatch.setattr(process, "_fork", fork)

    with pytest.raises(StageStartError, match=r"not ready within 0\.3 s"):
        await process.start(0.3)
    await process.stop(0)

    assert await asyncio.wait_for(connected[0].receive(), 10) is None
    await connected[0].close()
    run_dir.remove()
