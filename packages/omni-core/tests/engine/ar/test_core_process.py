"""Where the engine core's process comes from."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def host(stage: Any, answer: Connection) -> None:
    """What a stage host does: it is forked from the fork server and starts an engine."""
    from omni_core.engine.ar.runner import ArRunner

    async def start_and_stop() -> None:
        runner = ArRunner(stage)
        facts = await runner.start()
        answer.send([parent_of(pid) for pid in facts["core_pids"]])
        await runner.stop()

    asyncio.run(start_and_stop())


def test_the_core_of_a_forked_host_is_forked_from_the_same_server(make_stage: Any) -> None:
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=host, args=(make_stage(), writer))

    process.start()
    writer.close()

    assert reader.poll(120)
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    assert reader.recv() == [server._forkserver_pid]
    process.join(60)
    assert process.exitcode == 0


def test_cuda_spawns() -> None:
    from omni_core.engine.ar.core_process import core_context

    assert core_context("cuda").get_start_method() == "spawn"
    assert core_context("cpu").get_start_method() == "forkserver"
