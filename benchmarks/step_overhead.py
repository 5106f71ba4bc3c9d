"""What the AR engine's mechanism costs: a talker's step against plain text decoding on the same backbone.

Run: python benchmarks/step_overhead.py [--requests 1 8 32] [--layers 2 28] [--rounds 6] [--steps 120] [--json]

Both engines live in one process and take turns with each step, so that the machine's other work meets both alike, and what
counts is the processor time of the thread that runs them. The talker computes its inputs, predicts a frame that costs nothing,
records it and sends it out; the model's own predictor is not part of this. The goal is a ratio of at most 1.05. What the
mechanism takes does not depend on the backbone: two layers are the least that there can be, 28 are what real talkers have.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
from rows import Row, as_json, as_table

from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import ResolvedStage
from omni_core.testing.in_process import InProcessEngine
from omni_core.testing.tiny_ar import HIDDEN, build_tiny_ar

PROMPT = 8


def make_engine(folder: Path, architecture: str, requests: int, length: int, layers: int = 2) -> InProcessEngine:
    stage = ResolvedStage(
        pipeline="tiny",
        topology=StagePipelineConfig(stage_id=0, model_stage="talker"),
        model=str(build_tiny_ar(folder / f"{architecture}-{layers}", architecture, layers=layers)),
        architecture=architecture,
        architecture_target=None if architecture == "LlamaForCausalLM" else f"omni_core.testing.tiny_ar:{architecture}",
        runner="",
        engine_args={
            "max_model_len": length,
            "max_num_seqs": requests,
            "dtype": "float32",
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": 64 << 20,
        }
        if architecture == "LlamaForCausalLM"
        else {"max_model_len": length, "max_num_seqs": requests, "dtype": "float32", "kv_cache_memory_bytes": 64 << 20},
    )
    return InProcessEngine(stage)


def time_steps(engines: Mapping[str, InProcessEngine], requests: int, steps: int, tag: str) -> dict[str, list[float]]:
    """Return the seconds of `steps` steps of each engine in which every request decodes."""
    rows = np.random.default_rng(0).standard_normal((PROMPT, HIDDEN), dtype=np.float32)
    for engine in engines.values():
        for number in range(requests):
            engine.add(f"{tag}-{number}", {"rows": rows}, prompt_len=PROMPT, max_tokens=steps + 20)
        while any(request.num_output_tokens < 2 for request in engine.scheduler.requests.values()):
            engine.core.step()
    found: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(steps):
        for name, engine in engines.items():
            began = time.thread_time()
            engine.core.step()
            found[name].append(time.thread_time() - began)
    for engine in engines.values():
        for number in range(requests):
            engine.abort(f"{tag}-{number}")
        engine.core.step()
    return found


def measure(folder: Path, requests: int, layers: int, rounds: int, steps: int) -> dict[str, Any]:
    length = PROMPT + steps + 32
    architectures = {"plain": "LlamaForCausalLM", "talker": "TinyBareTalker"}
    engines = {name: make_engine(folder, kind, requests, length, layers) for name, kind in architectures.items()}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(-1, rounds):
        found = time_steps(engines, requests, steps, f"round{number}")
        if number >= 0:  # the first round warms up
            for name, times in found.items():
                seconds[name] += times
    for engine in engines.values():
        engine.close()
    return {name: np.array(values) * 1000 for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 28])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for layers in options.layers:
            for requests in options.requests:
                found = measure(Path(folder), requests, layers, options.rounds, options.steps)
                rows += as_rows(f"{requests} requests, {layers} layers", found)
    print(as_json(rows) if options.json else as_table(rows))


def as_rows(what: str, found: dict[str, Any]) -> list[Row]:
    """Return the tenth percentile and the median of both engines' steps."""
    rows = []
    for name, percent in (("p10", 10), ("median", 50)):
        plain, talker = (float(np.percentile(found[engine], percent)) for engine in ("plain", "talker"))
        baseline = f"plain step, {what}, {name}"
        rows.append(Row(baseline, len(found["plain"]), plain, "ms"))
        mine = f"talker step, {what}, {name}"
        rows.append(Row(mine, len(found["talker"]), talker, "ms", talker / plain, baseline))
    return rows


if __name__ == "__main__":
    main()
