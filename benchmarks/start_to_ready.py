"""Seconds from start to ready: `omni serve` on a tiny two-stage checkpoint, and our own processes with fakes in them.

    .venv/bin/python benchmarks/start_to_ready.py [--n 5] [--json]

The baseline is `import vllm` alone: no server on vLLM can be ready before that is done, so the ratio says what all else costs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import Row, as_json, as_table
from tiny_checkpoint import build_tiny

from omni_server.testing import serve

FAKES = """
import asyncio, time
started = time.monotonic()
from omni_core.client import AsyncOmni
from omni_core.testing.pipelines import fake_pipeline

async def main():
    async with AsyncOmni.from_resolved(fake_pipeline()):
        print(time.monotonic() - started)

asyncio.run(main())
"""
"""A process of its own for each run, so that its fork server is new."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the seconds from start to ready.")
    parser.add_argument("--n", type=int, default=5, help="starts (default 5)")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    rows = measure(options.n)
    print(as_json(rows) if options.json else as_table(rows))
    return 0


def measure(n: int) -> list[Row]:
    """Return the rows of `n` runs of each kind, taking turns so that the machine's other work meets all alike."""
    imports, fakes, starts = [], [], []
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as scratch:
        model = build_tiny(Path(scratch) / "model")
        for _ in range(n):
            imports.append(_import_s())
            fakes.append(_fakes_s())
            starts.append(_start_s(model, Path(scratch) / "serve.log"))
    baseline = Row.of("import vllm", imports, "s")
    return [
        baseline,
        Row.of("start to ready, two fake stages", fakes, "s", baseline),
        Row.of("start to ready, two stages", starts, "s", baseline),
    ]


def _import_s() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import vllm.v1.engine.async_llm"], check=True, capture_output=True, timeout=300)
    return time.perf_counter() - started


def _fakes_s() -> float:
    done = subprocess.run([sys.executable, "-c", FAKES], stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    return float(done.stdout.split()[-1])


def _start_s(model: Path, log: Path) -> float:
    started = time.perf_counter()
    with serve(model, log=log):
        return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
