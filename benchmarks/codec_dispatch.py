"""What waiting for more rows costs and brings in a codec stage: `codec_dispatch_max_rows: 16`, `codec_dispatch_max_wait_ms: 6`.

Run: python benchmarks/codec_dispatch.py [--streams 1 16 64] [--seconds 4] [--rounds 2] [--think-ms 20] [--json]

Each stream sends a chunk of 15 frames, and the next one some time after it has its audio: an exponentially distributed time,
as a talker that serves many takes it. The light runner with and without the two options takes turns, in one process. A row's
wait lasts from its arrival until its step begins. The codec is a tiny one on a CPU, whose step costs more with each row; on a
GPU, where it hardly does, waiting brings more.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rows import Row, as_json, as_table

from omni_core.engine.light_runner import LightRunner
from omni_core.runner import LightChunk, StageInput
from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_models_moss.code2wav import MossTTSCodecDecoder
from omni_models_moss.codec.tiny import NUM_QUANTIZERS, write_codec
from omni_models_moss.pipeline import MOSS_TTS_LOCAL

FRAMES = 15
OPTIONS: dict[str, Mapping[str, Any]] = {
    "at once": {},
    "coalesced": {"codec_dispatch_max_rows": 16, "codec_dispatch_max_wait_ms": 6},
}


class TimedDecoder(MossTTSCodecDecoder):
    """The codec stage, which notes when each row's step begins."""

    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Note the time, then decode."""
        NOTES.steps += 1
        now = time.perf_counter()
        for chunk in chunks:
            NOTES.waits_ms.append(1000 * (now - NOTES.sent.get(chunk.request_id, now)))
        return super().step(chunks)


@dataclasses.dataclass
class Notes:
    """What one run of the runner found."""

    sent: dict[str, float] = dataclasses.field(default_factory=dict)
    waits_ms: list[float] = dataclasses.field(default_factory=list)
    steps: int = 0
    frames_per_second: float = 0.0


NOTES = Notes()


def make_stage(folder: Path, options: Mapping[str, Any]) -> ResolvedStage:
    return ResolvedStage(
        pipeline=MOSS_TTS_LOCAL.model_type,
        topology=MOSS_TTS_LOCAL.stages[1],
        model=str(folder),
        architecture="TimedDecoder",
        architecture_target=f"{__name__}:TimedDecoder",
        runner="",
        inputs=(ResolvedEdge(0, 1, "none", "", stream=options),),
    )


async def run_streams(folder: Path, options: Mapping[str, Any], streams: int, seconds: float, think_s: float) -> Notes:
    """Return what a runner with so many streams does in a time."""
    global NOTES
    NOTES = Notes()
    runner = LightRunner(make_stage(folder, options))
    await runner.start()
    began = time.perf_counter()
    chunks = await asyncio.gather(*(run_stream(runner, number, began + seconds, think_s) for number in range(streams)))
    NOTES.frames_per_second = FRAMES * sum(chunks) / (time.perf_counter() - began)
    await runner.stop()
    return NOTES


async def run_stream(runner: LightRunner, number: int, until: float, think_s: float) -> int:
    """Send chunks until a time and return how many there were."""
    name, draw = f"stream-{number}", random.Random(number)
    codes = np.random.default_rng(number).integers(0, 1024, (FRAMES, NUM_QUANTIZERS), dtype=np.int32)

    async def listen() -> None:
        async for _ in runner.run(StageInput(name, {}, {}, streaming=True)):
            pass

    listener = asyncio.create_task(listen())
    await asyncio.sleep(draw.random() * think_s)
    chunks, is_last = 0, False
    while not is_last:
        await asyncio.sleep(draw.expovariate(1 / think_s))
        is_last = time.perf_counter() > until
        NOTES.sent[name] = time.perf_counter()
        await runner.push(name, {"codes": codes}, is_last)
        chunks += 1
    await listener
    return chunks


def as_rows(streams: int, found: Mapping[str, list[Notes]]) -> list[Row]:
    """Return frames a second, rows of a step and the wait that nearly all rows stay below, of both ways."""
    measures: dict[str, tuple[str, Callable[[Notes], float]]] = {
        "frames a second": ("1/s", lambda notes: notes.frames_per_second),
        "rows of a step": ("rows", lambda notes: len(notes.waits_ms) / notes.steps),
        "p99 of the wait": ("ms", lambda notes: float(np.percentile(notes.waits_ms, 99))),
    }
    rows: list[Row] = []
    for name, (unit, measure) in measures.items():
        baseline: Row | None = None
        for way, runs in found.items():
            rows.append(Row.of(f"{name}, {streams} streams, {way}", [measure(notes) for notes in runs], unit, baseline))
            baseline = rows[-1]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--think-ms", type=float, default=20)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        write_codec(Path(name), 0)
        for streams in options.streams:
            found: dict[str, list[Notes]] = {way: [] for way in OPTIONS}
            for _ in range(options.rounds):
                for way, given in OPTIONS.items():
                    found[way].append(
                        asyncio.run(run_streams(Path(name), given, streams, options.seconds, options.think_ms / 1000))
                    )
            rows += as_rows(streams, found)
    print(as_json(rows) if options.json else as_table(rows))


if __name__ == "__main__":
    main()
