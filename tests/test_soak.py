"""A server under load, then gone: memory stays flat, and nothing outlives a stop or a kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from omni_core.engine.stage_host import TIDY_S
from omni_core.testing.waiting import wait_until
from omni_server.testing import RunningServer, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

SPEECH = {"input": "Say something short.", "response_format": "pcm", "stream_format": "audio"}
CONCURRENCY = 8
MOST_GROWTH = 1.05


def _request(number: int) -> dict[str, Any]:
    aborted = number % 3 == 0
    return {
        **SPEECH,
        "input": f"Request number {number}.",
        "seed": number,
        "max_new_tokens": 400 if aborted else 8 + number % 8,
    }


async def _run(url: str, numbers: range) -> list[int]:
    """Send requests, eight at a time, and return the numbers of bytes of those that were not aborted."""
    limits = httpx.Limits(max_connections=CONCURRENCY)
    async with httpx.AsyncClient(base_url=url, timeout=180, limits=limits) as client:
        room = asyncio.Semaphore(CONCURRENCY)

        async def one(number: int) -> int | None:
            async with room:
                if number % 3 == 0:
                    await _abort(client, number)
                    return None
                async with client.stream("POST", "/v1/audio/speech", json=_request(number)) as answer:
                    assert answer.status_code == 200, (await answer.aread()).decode()
                    return sum([len(data) async for data in answer.aiter_bytes()])

        sizes = await asyncio.gather(*(one(number) for number in numbers))
    return [size for size in sizes if size is not None]


async def _abort(client: httpx.AsyncClient, number: int) -> None:
    """Send a request and go away: before its audio began for every second one, after its first piece for the others."""
    before_audio = number % 2 == 0
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(0.02 if before_audio else None),
            client.stream("POST", "/v1/audio/speech", json=_request(number)) as answer,
        ):
            await anext(answer.aiter_bytes())


def _memory(processes: list[psutil.Process]) -> dict[int, int]:
    return {process.pid: process.memory_info().rss for process in processes}


def _growth(before: dict[int, int], processes: list[psutil.Process]) -> dict[int, tuple[int, int]]:
    """Return the processes that have grown by more than they may, with what they had and have."""
    return {pid: (before[pid], rss) for pid, rss in _memory(processes).items() if rss > before[pid] * MOST_GROWTH}


@contextmanager
def _serving(model: Path, traces: Any, tmp_path: Path) -> Iterator[RunningServer]:
    with serve(model, log=tmp_path / "serve.log", env=traces.env) as server:
        yield server


def test_three_hundred_requests_leave_memory_flat_and_nothing_behind(
    tiny: Callable[[str], Path], traces: Any, tmp_path: Path
) -> None:
    with _serving(tiny("custom_voice"), traces, tmp_path) as server:
        at_start = {process.pid for process in traces.processes()}
        shm_at_start, files_at_start = traces.shared_memory(), traces.files()

        first = asyncio.run(_run(server.url, range(1, 201)))
        at_200 = _memory(traces.processes())
        last = asyncio.run(_run(server.url, range(201, 301)))

        assert len(first) + len(last) == 200
        assert min(first + last) > 0
        assert {process.pid for process in traces.processes()} == set(at_200) == at_start
        # The last clients have left, and the stages hear of it in a moment; from time to time these give back free memory.
        wait_until(lambda: traces.shared_memory() <= shm_at_start, "shared memory to be given back")
        wait_until(lambda: traces.files() == files_at_start, f"the files {files_at_start}")
        deadline = time.monotonic() + 2 * TIDY_S
        while (grown := _growth(at_200, traces.processes())) and time.monotonic() < deadline:
            time.sleep(1.0)
        assert grown == {}
        assert httpx.get(f"{server.url}/health", timeout=10).status_code == 200
        again = httpx.post(f"{server.url}/v1/audio/speech", json={**SPEECH, "max_new_tokens": 8}, timeout=60)
        assert again.status_code == 200
        assert again.content
        assert server.stop() == 0

    traces.wait_until_gone()


def test_a_server_killed_while_idle_leaves_nothing(tiny: Callable[[str], Path], traces: Any, tmp_path: Path) -> None:
    with _serving(tiny("custom_voice"), traces, tmp_path) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(10)

        traces.wait_until_gone()


def test_a_server_killed_in_the_middle_of_a_request_leaves_nothing(
    tiny: Callable[[str], Path], traces: Any, tmp_path: Path
) -> None:
    body = {**SPEECH, "max_new_tokens": 2000}
    with (
        _serving(tiny("custom_voice"), traces, tmp_path) as server,
        httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=60) as answer,
    ):
        pieces = answer.iter_bytes()  # dropped, it would end the request
        assert next(pieces)

        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(10)

        traces.wait_until_gone()


def test_sigterm_in_the_middle_of_a_request_finishes_it_and_ends_with_0(
    tiny: Callable[[str], Path], traces: Any, tmp_path: Path
) -> None:
    body = {**SPEECH, "max_new_tokens": 40}
    with _serving(tiny("custom_voice"), traces, tmp_path) as server:
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=60) as answer:
            parts = answer.iter_bytes()
            first = next(parts)
            server.process.send_signal(signal.SIGTERM)
            rest = b"".join(parts)

        assert len(first) + len(rest) > 0
        assert server.process.wait(60) == 0
        traces.wait_until_gone()
