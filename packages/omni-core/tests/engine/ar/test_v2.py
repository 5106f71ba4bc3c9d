"""Both model runners give the same codes. The second one runs in a process of its own, on Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = """
import json, sys
architecture, folder, runner = sys.argv[1:]
if runner == "v2":
    from omni_core.engine import mrv2_lane
    mrv2_lane.install()
import numpy as np, torch
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import ResolvedStage
from omni_core.testing.in_process import InProcessEngine

torch.set_num_threads(1)
stage = ResolvedStage(
    pipeline="tiny", topology=StagePipelineConfig(stage_id=0, model_stage="talker"), model=folder, architecture=architecture,
    architecture_target=f"omni_core.testing.tiny_ar:{architecture}", runner="", model_runner=runner,
    engine_args={"max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 22, "dtype": "float32",
                 "block_size": 32, "num_gpu_blocks_override": 4},
)
engine = InProcessEngine(stage)
assert engine.worker.use_v2_model_runner is (runner == "v2")
rows = [np.random.default_rng(i).standard_normal((12, 64), dtype=np.float32) for i in range(2)]
requests = []
for i in range(2):
    gated = architecture == "TinyGatedTalker"
    engine.add(f"r{i}", {} if gated else {"rows": rows[i]}, prompt_len=5 + i, max_tokens=38, seed=i,
               temperature=0.9 if architecture == "TinySamplingTalker" else 0.0)
    requests.append(list(engine.scheduler.requests.values())[-1])
    for start in range(0, 12 if gated else 0, 5):
        engine.push(f"r{i}", torch.from_numpy(rows[i][start:start + 5]), final=start == 10)
        engine.step()
engine.drain()
engine.step()
print("RESULT" + json.dumps({
    "codes": [engine.codes(f"r{i}") for i in range(2)], "live": engine.worker.omni.live,
    "preemptions": sum(request.num_preemptions for request in requests),
}))
"""


def run(architecture: str, folder: Any, runner: str) -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT, architecture, str(folder), runner]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
    return result


@pytest.mark.parametrize("architecture", ["TinyTalker", "TinyGatedTalker", "TinyConstrainedTalker"])
def test_both_model_runners_give_the_same_codes_under_preemption(checkpoints: Any, architecture: str) -> None:
    first = run(architecture, checkpoints(architecture), "v1")
    second = run(architecture, checkpoints(architecture), "v2")

    assert first["preemptions"] > 0
    assert second["preemptions"] > 0
    assert first["codes"] == second["codes"]
    assert [len(codes) for codes in first["codes"]] == [38, 38]
    assert second["live"] == 0
