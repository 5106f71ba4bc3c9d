"""What load, replicas and backpressure do to `omni serve`: ratios on the tiny two-stage checkpoint over HTTP.

    .venv/bin/python benchmarks/load.py [--rounds 3] [--json]

Four servers, two of them at a time, which take turns. The first is as the deploy file says: it answers at concurrency 1, 8 and
32, and its first packets at concurrency 1, where it is empty, stand beside one step of its talker and one decode of a frame, as
/metrics has them. The second has two replicas of stage 1. The other two send small pieces, so that a request has many on the
way: one with the default window of pieces that stage 1 has not taken, one with a window that is never full.

A sample of requests/s is one round, of first packets one request, of the step and the decode the mean of a round. The client,
the servers and their stages share the machine: two replicas can only be faster where cores are idle.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml
from rows import Row, as_json, as_table
from serving import GREEDY, TEXTS
from tiny_checkpoint import build_tiny

from omni_server.testing import serve

REQUESTS = {1: len(TEXTS), 8: 4 * len(TEXTS), 32: 8 * len(TEXTS)}
"""Requests of a round at each concurrency: every text equally often, so that all rounds do the same work for a request."""
FRAMES = 24
"""Most codec frames of a request: about two seconds of audio."""
MOST = max(REQUESTS)
PIECE_FRAMES = 2
OPEN_WINDOW = 1_000_000
SETTLE_S = 30.0
ENGINE = '{"0": {"kv_cache_memory_bytes": 134217728}}'
REPLICAS = '{"0": {"kv_cache_memory_bytes": 134217728}, "1": {"num_replicas": 2}}'


class Steps(NamedTuple):
    """A stage's steps so far."""

    number: float
    seconds: float


class Samples(NamedTuple):
    """What the first server showed."""

    rates: dict[int, list[float]]
    firsts_s: list[float]
    floors_s: list[float]
    """One step of the talker and one decode of a frame."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure batching, first packets, replicas and backpressure.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each kind (default 3)")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as name:
        folder = Path(name)
        model = build_tiny(folder / "model")
        rows = [*measure_load(model, folder, options.rounds), *measure_windows(model, folder, options.rounds)]
    print(as_json(rows) if options.json else as_table(rows))
    return 0


def measure_load(model: Path, folder: Path, rounds: int) -> list[Row]:
    """Return the rows of the server as it is, and of the one with two replicas."""
    with _start(model, folder / "one.log", ENGINE) as one, _start(model, folder / "two.log", REPLICAS) as two:
        found, replicas = asyncio.run(_alternate(one, two, rounds))
    alone = Row.of("load, 1 at once, requests/s", found.rates[1], "1/s")
    floor = Row.of("load, one talker step and one decode", found.floors_s, "s")
    batched = {count: Row.of(f"load, {count} at once, requests/s", found.rates[count], "1/s", alone) for count in (8, MOST)}
    return [
        alone,
        *batched.values(),
        Row.of(f"load, {MOST} at once, two replicas of stage 1, requests/s", replicas, "1/s", batched[MOST]),
        floor,
        Row.of("load, first packet at an empty server", found.firsts_s, "s", floor),
    ]


def measure_windows(model: Path, folder: Path, rounds: int) -> list[Row]:
    """Return the rows of small pieces without and with a window that can be full."""
    free = _write_deployment(folder / "free.yaml", OPEN_WINDOW)
    bound = _write_deployment(folder / "bound.yaml", None)
    rates: dict[str, list[float]] = {"free": [], "bound": []}
    with (
        _start(model, folder / "free.log", ENGINE, "--deploy-config", str(free)) as free_url,
        _start(model, folder / "bound.log", ENGINE, "--deploy-config", str(bound)) as bound_url,
    ):
        for _ in range(rounds):
            for name, url in (("free", free_url), ("bound", bound_url)):
                rates[name].append(asyncio.run(_load(url, MOST))[0])
    baseline = Row.of(f"load, {MOST} at once, small pieces, no backpressure, requests/s", rates["free"], "1/s")
    return [baseline, Row.of(f"load, {MOST} at once, small pieces, backpressure, requests/s", rates["bound"], "1/s", baseline)]


def _write_deployment(path: Path, window: int | None) -> Path:
    """Write a deploy file with small pieces and a window; None leaves the default."""
    extra = {"codec_chunk_frames": PIECE_FRAMES, **({} if window is None else {"max_inflight": window})}
    path.write_text(
        yaml.safe_dump({"base_config": "qwen3_tts.yaml", "connectors": {"connector_of_shared_memory": {"extra": extra}}})
    )
    return path


@contextlib.contextmanager
def _start(model: Path, log: Path, overrides: str, *arguments: str) -> Iterator[str]:
    """Start a server, send it a round so that it is warm, and yield its URL."""
    given = ("--stage-overrides", overrides, *arguments)
    with serve(model, *given, log=log, env={"OMP_NUM_THREADS": "1"}) as server:
        asyncio.run(_load(server.url, MOST))
        yield server.url


async def _alternate(one: str, two: str, rounds: int) -> tuple[Samples, list[float]]:
    """Return what the server as it is showed, and the requests/s of the one with two replicas."""
    found, replicas = Samples({count: [] for count in REQUESTS}, [], []), []
    for _ in range(rounds):
        for count in REQUESTS:
            before = await _steps(one, 0)
            rate, firsts = await _load(one, count)
            found.rates[count].append(rate)
            if count == 1:
                found.firsts_s.extend(firsts)
                talker_s = _mean(before, await _settled(one, 0, before))
                before = await _steps(one, 1)
                await _load(one, 1, frames=2)  # pieces of one frame each
                found.floors_s.append(talker_s + _mean(before, await _settled(one, 1, before)))
        replicas.append((await _load(two, MOST))[0])
    return found, replicas


async def _load(url: str, concurrency: int, frames: int = FRAMES) -> tuple[float, list[float]]:
    """Return the requests/s of a round, and each one's seconds to its first packet."""
    room, count = asyncio.Semaphore(concurrency), REQUESTS[concurrency]
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=concurrency)) as client:
        started = time.perf_counter()
        firsts = await asyncio.gather(*(_one(client, room, _body(number, frames)) for number in range(count)))
        return count / (time.perf_counter() - started), list(firsts)


def _body(number: int, frames: int) -> Mapping[str, Any]:
    return {
        "input": TEXTS[number % len(TEXTS)],
        "language": "English",
        "max_new_tokens": frames,
        "sampling_params_list": GREEDY,
        "response_format": "pcm",
        "stream_format": "audio",
    }


async def _one(client: httpx.AsyncClient, room: asyncio.Semaphore, body: Mapping[str, Any]) -> float:
    async with room:
        started, first_s = time.perf_counter(), 0.0
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_bytes():
                first_s = first_s or time.perf_counter() - started
        return first_s


async def _steps(url: str, stage: int) -> Steps:
    """Return a stage's steps of all replicas."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        text = (await client.get("/metrics")).text

    def total(name: str) -> float:
        return sum(
            map(float, re.findall(rf'^omni_step_seconds_{name}{{[^}}]*stage="{stage}"[^}}]*}} (\S+)$', text, re.MULTILINE))
        )

    return Steps(total("count"), total("sum"))


async def _settled(url: str, stage: int, before: Steps) -> Steps:
    """Return a stage's steps when there are new ones and no more come: a stage's numbers travel behind its work."""
    deadline, last = time.monotonic() + SETTLE_S, before
    while (now := await _steps(url, stage)) != last or now.number == before.number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"/metrics did not show the steps of stage {stage} within {SETTLE_S:g} s")
        last = now
        await asyncio.sleep(1.0)
    return now


def _mean(before: Steps, after: Steps) -> float:
    return (after.seconds - before.seconds) / (after.number - before.number)


if __name__ == "__main__":
    sys.exit(main())
