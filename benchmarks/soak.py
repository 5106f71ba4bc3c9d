"""A soak: clients that stream, ask for whole files and go away, for minutes; then what memory and tables did.

    .venv/bin/python benchmarks/soak.py [--minutes 10] [--clients 16] [--model DIR] [--json]

Prints for each process of the server its resident memory and the slope of a line through it, without the first half of the
time, and the numbers of open files; for each table its largest size and its size at the end, which must be 0. Ends with 1 if a
table is not empty, a request failed, or a process grew by more than `MOST_GROWTH` over the time that was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from tiny_checkpoint import build_tiny

from omni_server.testing import RunningServer, serve

SAMPLE_S = 5.0
SETTLE_S = 30.0
"""Longest wait for the tables to be empty at the end."""
WARM_UP = 0.5
"""The first half fills what has a limit: KV blocks are touched, kernels are kept for each size of a batch."""
ARGUMENTS = ("--kv-cache-memory-bytes", str(64 << 20))
"""A KV cache is touched block by block; a large one would look like growth for as long as there are fresh blocks."""
MOST_GROWTH = 0.02
MIB = 2**20
TABLES = (
    "omni_requests_running",
    "omni_requests_waiting",
    "omni_stage_requests",
    "omni_stage_waiting",
    "omni_transfer_in_flight",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)
TEXTS = ("Yes.", "The train leaves at five.", "It rained all night, and the river rose to the door of the mill.")


@dataclass
class Tally:
    """What clients saw."""

    endings: Counter[str] = field(default_factory=Counter)
    """`complete`, `left before audio`, `left in the audio`, and the texts of errors."""
    firsts_s: list[float] = field(default_factory=list)
    audio_s: float = 0.0


@dataclass(frozen=True)
class Sample:
    """The server at one moment."""

    seconds: float
    rss: Mapping[str, int]
    """Bytes, by process."""
    files: Mapping[str, int]
    """Open files, by process."""
    tables: Mapping[str, float]


@dataclass(frozen=True)
class Growth:
    """What one process did behind the warm-up."""

    process: str
    first_mib: float
    last_mib: float
    slope_mib_per_min: float
    files_first: int
    files_last: int

    @property
    def is_flat(self) -> bool:
        """Whether it grew by no more than may be."""
        return self.last_mib <= self.first_mib * (1 + MOST_GROWTH)


def main() -> int:
    """Run the soak and print."""
    parser = argparse.ArgumentParser(description="Load a server for minutes and watch its memory and tables.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--clients", type=int, default=16, help="requests at once (default 16)")
    parser.add_argument("--model", type=Path, help="a checkpoint's folder; default: a tiny one, built now")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-soak-") as scratch:
        model = options.model or build_tiny(Path(scratch) / "model")
        with serve(model, *ARGUMENTS, log=Path(scratch) / "serve.log", env={"OMP_NUM_THREADS": "1"}) as server:
            tally, samples = asyncio.run(_soak(server, options.minutes * 60, options.clients))
            leftovers = asyncio.run(_settle(server))
    growths = _growths(samples)
    failures = {text: n for text, n in tally.endings.items() if text.startswith("error")}
    if options.json:
        figures = {"endings": tally.endings, "audio_s": tally.audio_s, "leftovers": leftovers}
        print(json.dumps(figures | {"processes": [asdict(growth) for growth in growths]}))
    else:
        _print(tally, samples, growths, leftovers)
    return int(bool(failures or leftovers or not all(growth.is_flat for growth in growths)))


async def _soak(server: RunningServer, seconds: float, clients: int) -> tuple[Tally, list[Sample]]:
    """Run clients and take samples until the time is up."""
    tally, samples = Tally(), []
    began = time.monotonic()
    limits = httpx.Limits(max_connections=clients + 1)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
        work = [
            asyncio.create_task(_client(client, random.Random(number), began + seconds, tally)) for number in range(clients)
        ]
        while (now := time.monotonic()) < began + seconds:
            samples.append(await _sample(client, server, now - began))
            await asyncio.sleep(SAMPLE_S)
        await asyncio.gather(*work)
    return tally, samples


async def _client(client: httpx.AsyncClient, dice: random.Random, until: float, tally: Tally) -> None:
    """Send one request after the other: a third of them is left at a random moment."""
    while time.monotonic() < until:
        body: dict[str, Any] = {
            "input": dice.choice(TEXTS),
            "response_format": "pcm",
            "max_new_tokens": dice.choice((2, 12, 24, 60)),
            "seed": dice.randrange(2**31),
        }
        body |= dice.choice(({}, {"stream_format": "audio"}, {"stream_format": "sse"}))
        leaves_after_s = dice.choice((None, None, dice.uniform(0, 1.5)))
        try:
            tally.endings[await _one(client, body, leaves_after_s, tally)] += 1
        except (httpx.HTTPError, httpx.StreamError) as error:
            tally.endings[f"error: {type(error).__name__}"] += 1


async def _one(client: httpx.AsyncClient, body: Mapping[str, Any], leaves_after_s: float | None, tally: Tally) -> str:
    began, pieces = time.monotonic(), 0
    try:
        async with (
            asyncio.timeout(leaves_after_s),
            client.stream("POST", "/v1/audio/speech", json=body) as answer,
        ):
            if answer.status_code != 200:
                return f"error: {answer.status_code} {(await answer.aread()).decode()[:200]}"
            size = 0
            async for piece in answer.aiter_bytes():
                size += len(piece)
                pieces += 1
                if pieces == 1:
                    tally.firsts_s.append(time.monotonic() - began)
            if body.get("stream_format") != "sse":
                tally.audio_s += size / 2 / 24000
    except TimeoutError:
        return "left in the audio" if pieces else "left before audio"
    return "complete"


async def _sample(client: httpx.AsyncClient, server: RunningServer, seconds: float) -> Sample:
    root = psutil.Process(server.process.pid)
    rss, files = {}, {}
    for process in [root, *root.children(recursive=True)]:
        try:
            name = _name(process, root.pid)
            rss[name], files[name] = process.memory_info().rss, process.num_fds()
        except psutil.NoSuchProcess:
            continue
    return Sample(seconds, rss, files, await _tables(client))


def _name(process: psutil.Process, server: int) -> str:
    line = " ".join(process.cmdline())
    if process.pid == server:
        return "server"
    if process.name().startswith("omni:"):
        return f"stage {process.name().split(':')[1]}"
    if "resource_tracker" in line:
        return "resource tracker"
    if "forkserver" not in line:
        return line
    return "fork server" if process.ppid() == server else "engine core"


async def _tables(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    return {
        name: sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)) for name in TABLES
    }


async def _settle(server: RunningServer) -> dict[str, float]:
    """Return what is not empty a while behind the last request."""
    deadline = time.monotonic() + SETTLE_S
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        while left := {name: size for name, size in (await _tables(client)).items() if size}:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(1.0)
    return left


def _growths(samples: Sequence[Sample]) -> list[Growth]:
    """Return each process's growth behind the warm-up."""
    end = samples[-1].seconds
    kept = [sample for sample in samples if sample.seconds >= WARM_UP * end]
    quarter = max(1, len(kept) // 4)
    growths = []
    for process in kept[0].rss:
        points = [(s.seconds / 60, s.rss[process] / MIB, s.files[process]) for s in kept if process in s.rss]
        minutes, sizes = [point[0] for point in points], [point[1] for point in points]
        slope = statistics.linear_regression(minutes, sizes).slope if len(points) > 1 else 0.0
        first, last = statistics.median(sizes[:quarter]), statistics.median(sizes[-quarter:])
        growths.append(Growth(process, first, last, slope, points[0][2], points[-1][2]))
    return growths


def _print(tally: Tally, samples: Sequence[Sample], growths: Sequence[Growth], leftovers: Mapping[str, float]) -> None:
    seconds = samples[-1].seconds
    total = sum(tally.endings.values())
    print(f"{seconds:.0f} s, {total} requests ({total / seconds:.2f}/s): {dict(tally.endings.most_common())}")
    firsts = sorted(tally.firsts_s) or [0.0]
    p50, p95 = (firsts[min(int(len(firsts) * share), len(firsts) - 1)] for share in (0.5, 0.95))
    print(f"first bytes: median {p50:.3f} s, 95 % {p95:.3f} s; audio without events: {tally.audio_s:.0f} s")
    print(f"{'process':18}{'MiB at first':>14}{'at last':>10}{'MiB/min':>10}{'files':>12}")
    for growth in growths:
        files = f"{growth.files_first} -> {growth.files_last}"
        print(
            f"{growth.process:18}{growth.first_mib:14.1f}{growth.last_mib:10.1f}{growth.slope_mib_per_min:10.3f}{files:>12}"
            + ("" if growth.is_flat else "  GROWS")
        )
    print(f"{'table':30}{'most':>8}{'at the end':>12}")
    for name in TABLES:
        print(f"{name:30}{max(sample.tables[name] for sample in samples):8.0f}{leftovers.get(name, 0):12.0f}")


if __name__ == "__main__":
    sys.exit(main())
