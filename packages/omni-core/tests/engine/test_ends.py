"""Exactly one end for each request, whatever brought it about: one for the caller, and one for each stage that knew it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any, cast

import pytest

from omni_core.engine.messages import Abort, Open
from omni_core.engine.options import EngineOptions
from omni_core.engine.stage_process import StageProcess
from omni_core.errors import OmniError
from omni_core.testing.running import loads, pids, request, running
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio

ENDS = ["finish", "failure", "deadline", "stall", "abort", "client gone", "stage 1 dies", "server stops", "all at once"]


@pytest.mark.parametrize("how", ENDS)
async def test_request_ends_once_for_its_caller_and_once_in_each_stage(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[tuple[int, str]] = Counter()
    ended: Counter[tuple[int, str]] = Counter()
    real = StageProcess.post

    def post(process: StageProcess, message: Any) -> None:
        if isinstance(message, (Open, Abort)):
            kind = opened if isinstance(message, Open) else ended
            kind[(process.stage.stage_id, message.request_id)] += 1
        real(process, message)

    monkeypatch.setattr(StageProcess, "post", post)
    inputs: dict[str, Any] = {"failure": {"break_at": 5}, "finish": {}, "stall": {"hang_at": 5}}.get(how, {"step_s": 0.005})
    count = 10 if how in ("finish", "failure", "stall") else 10**6
    limits = EngineOptions(stall_timeout_s=2.0 if how == "stall" else None)
    last = 0
    async with running(limits, stream={"chunk_frames": 1}) as orchestrator:
        stream = orchestrator.submit(request(1, count, timeout_s=2.0 if how == "deadline" else 60.0, **inputs))

        async def read() -> str:
            nonlocal last
            try:
                async for output in stream:
                    last += output.finished
            except OmniError as error:
                return type(error).__name__
            return "finished"

        task = asyncio.create_task(read())
        if how not in ("finish", "failure"):
            await async_wait_until(lambda: loads(orchestrator, "in_flight") == [1, 1], "the request in both stages")
        if how in ("abort", "all at once"):
            assert orchestrator.abort("r1")
        if how in ("stage 1 dies", "all at once"):
            os.kill(pids(orchestrator)[1], signal.SIGKILL)
        if how in ("client gone", "all at once"):
            task.cancel()
        if how in ("server stops", "all at once"):
            await orchestrator.stop(0)
        await asyncio.wait({task}, timeout=20)
        assert task.done()
        await cast("Any", stream).aclose()
        assert not orchestrator.abort("r1")

        expected = {
            "finish": "finished",
            "failure": "ServiceError",
            "deadline": "DeadlineError",
            "stall": "DeadlineError",
            "abort": "NotFoundError",
            "stage 1 dies": "StageDeadError",
            "server stops": "ServiceError",
        }
        assert task.cancelled() or task.result() == expected[how]
        assert last == (1 if how == "finish" else 0)
        assert set(opened) == set(ended)
        assert set(opened.values()) == set(ended.values()) == {1}
        assert {stage_id for stage_id, _ in opened} == {0, 1}
        assert loads(orchestrator, "in_flight") == [0, 0]
