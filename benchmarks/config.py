"""What reading a deployment costs: import and resolve in a new process, resolve again, memory, and growth with the stages.

    .venv/bin/python benchmarks/config.py [--n 20] [--json]

The deployment is the bundled file of Qwen3-Omni below an overlay, a flag and an override, with all installed plugins. The goals
are 0.25 s for import and resolve in a cold process, 10 ms for resolving once more, 60 MB of resident memory, and a time for
each stage that does not grow with their number. The baselines are an interpreter that does nothing, and pipelines of one stage.
Processor time is what the cold process uses itself, however busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rows import Row, as_json, as_table

from omni_core.connector import ConnectorEntry
from omni_core.deploy.resolve import resolve_deployment
from omni_core.model_info import ModelInfo
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.plugins import PluginManager, plugin_manager
from omni_core.testing.plugins import make_manager, make_plugin

OVERLAY = """base_config: qwen3_omni_moe.yaml
stages:
  - stage_id: 1
    gpu_memory_utilization: 0.5
"""
ARGUMENTS: dict[str, Any] = {
    "flags": {"max_model_len": 16384},
    "stage_overrides": '{"0": {"max_num_seqs": 8}}',
    "platform": "cuda",
}
COLD = f"""
import time
started, used = time.perf_counter(), time.process_time()
import json, sys
from omni_core.deploy.resolve import resolve_deployment
imported = time.perf_counter()
resolved = resolve_deployment(sys.argv[1], deploy_config=sys.argv[2], **{ARGUMENTS!r})
ended, used = time.perf_counter(), time.process_time() - used
with open("/proc/self/status") as status:
    kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
heavy = sorted({{"torch", "vllm", "transformers"}} & set(sys.modules))
print(json.dumps([imported - started, ended - started, used, kib / 1000 * 1.024, len(resolved.stages), heavy]))
"""
"""Prints the seconds of the import, those of import and resolve, their processor time, and megabytes of memory at the end."""
BARE = """

with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1000 * 1.024)
"""
STAGES = (1, 10, 100)
REPEATS = 5
"""Calls in one sample of a warm resolve."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what reading a deployment costs.")
    parser.add_argument("--n", type=int, default=20, help="samples (default 20)")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as folder:
        rows = [*measure_cold(Path(folder), options.n), *measure_warm(Path(folder), options.n), *measure_growth(options.n)]
    print(as_json(rows) if options.json else as_table(rows))
    return 0


def write_deployment(folder: Path) -> tuple[str, str]:
    """Write a checkpoint with only a config.json, and the overlay; return their paths."""
    model = folder / "qwen3_omni_moe"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3_omni_moe"}))
    (folder / "overlay.yaml").write_text(OVERLAY)
    return str(model), str(folder / "overlay.yaml")


def measure_cold(folder: Path, n: int) -> list[Row]:
    """Return the rows of `n` new processes of each kind, taking turns."""
    model, overlay = write_deployment(folder)
    samples: dict[str, list[float]] = {
        name: [] for name in ("bare", "bare MB", "import", "resolve", "processor", "whole", "MB")
    }
    for number in range(-1, n):
        bare_s, bare_mb = run(BARE)
        whole_s, found = run(COLD, model, overlay)
        imported_s, resolved_s, processor_s, resident_mb, stages, heavy = found
        assert (stages, heavy) == (3, [])
        if number >= 0:  # the first round writes the bytecode
            values = (bare_s, bare_mb, imported_s, resolved_s, processor_s, whole_s, resident_mb)
            for name, value in zip(samples, values, strict=True):
                samples[name].append(value)
    bare = Row.of("an interpreter that does nothing", samples["bare"], "s")
    bare_memory = Row.of("an interpreter that does nothing, memory", samples["bare MB"], "MB")
    return [
        bare,
        Row.of("cold: import", samples["import"], "s"),
        Row.of("cold: import and resolve", samples["resolve"], "s"),
        Row.of("cold: import and resolve, processor time", samples["processor"], "s"),
        Row.of("cold: the whole process", samples["whole"], "s", bare),
        bare_memory,
        Row.of("cold: resident memory", samples["MB"], "MB", bare_memory),
    ]


def run(script: str, *arguments: str) -> tuple[float, Any]:
    """Return the seconds of a new process and what it printed."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, timeout=60, check=True)
    return time.perf_counter() - started, json.loads(done.stdout)


def measure_warm(folder: Path, n: int) -> list[Row]:
    """Return the row of resolving once more in the same process."""
    model, overlay = write_deployment(folder)
    manager = plugin_manager()
    return [Row.of("warm: resolve", [time_resolve(model, overlay, manager, ARGUMENTS) for _ in range(n + 1)][1:], "ms")]


def measure_growth(n: int) -> list[Row]:
    """Return milliseconds for each stage of pipelines of 1, 10 and 100 stages, whose fields are all set for every stage."""
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as name:
        folder = Path(name)
        samples: dict[int, list[float]] = {count: [] for count in STAGES}
        managers = {count: make_manager({"chain": make_plugin(**chain_hooks(count))}) for count in STAGES}
        for count in STAGES:
            (folder / f"{count}.yaml").write_text(chain_file(count))
        for number in range(-1, n):
            for count in STAGES:
                model = ModelInfo("chain", folder, {"model_type": "chain"})
                given = {"flags": {"dtype": "float32"}, "stage_overrides": {"0": {"max_num_seqs": 2}}, "platform": "cpu"}
                spent = time_resolve(model, str(folder / f"{count}.yaml"), managers[count], given)
                if number >= 0:
                    samples[count].append(spent / count)
    one = Row.of("resolve, each of 1 stage", samples[1], "ms")
    return [one, *(Row.of(f"resolve, each of {count} stages", samples[count], "ms", one) for count in STAGES[1:])]


def time_resolve(model: str | ModelInfo, overlay: str, manager: PluginManager, given: dict[str, Any]) -> float:
    """Return the milliseconds of resolving once, the mean of a few calls."""
    started = time.perf_counter()
    for _ in range(REPEATS):
        resolve_deployment(model, deploy_config=overlay, manager=manager, **given)
    return (time.perf_counter() - started) / REPEATS * 1000


def chain_hooks(count: int) -> dict[str, Any]:
    """Return the hooks of a plugin with one pipeline of so many stages."""
    last = count - 1
    stages = tuple(
        StagePipelineConfig(
            stage_id=number,
            model_stage=f"s{number}",
            input_sources=(number - 1,) if number else (),
            final_output=number == last,
        )
        for number in range(count)
    )
    return {
        "omni_pipelines": [PipelineConfig(model_type="chain", model_arch="Chain", stages=stages)],
        "omni_connectors": [ConnectorEntry("SharedMemoryConnector", "omni_core.testing.fakes:FolderConnector")],
        "omni_architectures": {"Chain": "omni_core.testing.fakes:SumVocoder"},
    }


def chain_file(count: int) -> str:
    """Return a deploy file with an entry for every stage."""
    fields = "max_num_seqs: 4, max_num_batched_tokens: 512, gpu_memory_utilization: 0.5, env: {A: x}, enforce_eager: true"
    sampling = "default_sampling_params: {temperature: 0.5, top_k: 50}"
    return "stages:\n" + "".join(f"  - {{stage_id: {number}, {fields}, {sampling}}}\n" for number in range(count))


if __name__ == "__main__":
    sys.exit(main())
