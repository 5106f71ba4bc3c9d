"""Seconds from `omni serve` on a tiny two-stage checkpoint to its `Listening on` line, against `import vllm` alone.

    .venv/bin/python benchmarks/start_to_ready.py [--n 5] [--json]

No server on vLLM can be ready before `import vllm` is done, so the ratio says what everything else costs.
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
    """Return the rows of `n` imports and `n` starts, one after another."""
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as scratch:
        model = build_tiny(Path(scratch) / "model")
        imports = [_import_s() for _ in range(n)]
        starts = [_start_s(model, Path(scratch) / "serve.log") for _ in range(n)]
    baseline = Row.of("import vllm", imports, "s")
    return [baseline, Row.of("start to ready, two stages", starts, "s", baseline)]


def _import_s() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import vllm.v1.engine.async_llm"], check=True, capture_output=True, timeout=300)
    return time.perf_counter() - started


def _start_s(model: Path, log: Path) -> float:
    started = time.perf_counter()
    with serve(model, log=log):
        return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
