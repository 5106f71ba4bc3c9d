"""Requests a second and time to first audio over HTTP at concurrency 1, 4 and 8, against the reference implementation.

    .venv/bin/python benchmarks/serving.py [--n 48] [--no-reference] [--json]

Both decode greedily on one thread, so they do the same work for the same texts. The reference generates one request after
another and has no streaming: its first audio comes with its last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from reference import MissingReference, run_reference
from rows import Row, as_json, as_table
from tiny_checkpoint import build_tiny

from omni_server.testing import serve

CONCURRENCIES = (1, 4, 8)
FRAMES = 24
"""Most codec frames of a request: about two seconds of audio."""
TEXTS = (
    "Hello world, this is a test.",
    "The train leaves at five.",
    "Call me when you are there, please.",
    "It rained all night and the river rose.",
    "Yes.",
    "We need twelve eggs, butter and a little patience.",
    "Nobody knew who had opened the window.",
    "Good night.",
)
GREEDY = [{"temperature": 0.0, "repetition_penalty": 1.05}, {}]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure requests a second and time to first audio.")
    parser.add_argument("--n", type=int, default=48, help="requests at each concurrency (default 48)")
    parser.add_argument("--no-reference", action="store_true", help="leave the reference implementation out")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    rows = measure(options.n, with_reference=not options.no_reference)
    print(as_json(rows) if options.json else as_table(rows))
    return 0


def measure(n: int, *, with_reference: bool) -> list[Row]:
    """Return the rows of the reference, where it is wanted and can be had, and of the server."""
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as scratch:
        model = build_tiny(Path(scratch) / "model")
        voice = next(iter(json.loads((model / "config.json").read_text())["talker_config"]["spk_id"]))
        rate = first = None
        rows = []
        if with_reference:
            try:
                seconds = run_reference(model, voice, [TEXTS[i % len(TEXTS)] for i in range(min(n, 16))], FRAMES)
                rate = Row.of("reference, requests/s", [1 / s for s in seconds], "1/s")
                first = Row.of("reference, first audio", seconds, "s")
                rows = [rate, first]
            except MissingReference as missing:
                print(f"serving: no reference: {missing}", file=sys.stderr)
        with serve(model, log=Path(scratch) / "serve.log", env={"OMP_NUM_THREADS": "1"}) as server:
            asyncio.run(_load(server.url, voice, 8, 4))
            for concurrency in CONCURRENCIES:
                wall_s, firsts = asyncio.run(_load(server.url, voice, n, concurrency))
                rows.append(Row.of(f"omni, {concurrency} at once, requests/s", [n / wall_s], "1/s", rate))
                rows.append(Row.of(f"omni, {concurrency} at once, first audio", firsts, "s", first))
    return rows


async def _load(url: str, voice: str, n: int, concurrency: int) -> tuple[float, list[float]]:
    """Return the seconds that `n` requests took, and each one's seconds to first audio."""
    room = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=concurrency)) as client:
        started = time.perf_counter()
        firsts = await asyncio.gather(*(_one(client, room, _body(voice, number)) for number in range(n)))
        return time.perf_counter() - started, list(firsts)


def _body(voice: str, number: int) -> dict[str, Any]:
    return {
        "input": TEXTS[number % len(TEXTS)],
        "voice": voice,
        "language": "English",
        "max_new_tokens": FRAMES,
        "sampling_params_list": GREEDY,
        "response_format": "pcm",
        "stream_format": "audio",
    }


async def _one(client: httpx.AsyncClient, room: asyncio.Semaphore, body: dict[str, Any]) -> float:
    async with room:
        started, first_s = time.perf_counter(), 0.0
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_bytes():
                first_s = first_s or time.perf_counter() - started
        return first_s


if __name__ == "__main__":
    sys.exit(main())
