"""Both model runners give the same codes. Each runs in a process of its own, the second one on Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ARCHITECTURES = ("TinyTalker", "TinyGatedTalker", "TinyConstrainedTalker")
FRAMES = 12

SCRIPT = """
import json, sys
runner, frames, folders = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
if runner == "v2":
    from omni_core.engine import mrv2_lane
    mrv2_lane.install()
import numpy as np, torch
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import ResolvedStage
from omni_core.testing.in_process import InProcessEngine

torch.set_num_threads(1)
rows = [np.random.default_rng(i).standard_normal((30, 64), dtype=np.float32) for i in range(2)]


def run(architecture, folder):
    stage = ResolvedStage(
        pipeline="tiny", topology=StagePipelineConfig(stage_id=0, model_stage="talker"),
        model=folder, architecture=architecture,
        architecture_target=f"omni_core.testing.tiny_ar:{architecture}", runner="", model_runner=runner,
        # Both requests outgrow their first block after a few frames, and there is one block for the two of them.
        engine_args={"max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 22, "dtype": "float32",
                     "block_size": 32, "num_gpu_blocks_override": 4},
    )
    engine = InProcessEngine(stage)
    assert engine.worker.use_v2_model_runner is (runner == "v2")
    requests = []
    gated = architecture == "TinyGatedTalker"
    for i in range(2):
        engine.add(f"r{i}", {} if gated else {"rows": rows[i]}, prompt_len=26 + i, max_tokens=frames, seed=i, temperature=0.0)
        requests.append(list(engine.scheduler.requests.values())[-1])
        for start in range(0, 30 if gated else 0, 12):
            engine.push(f"r{i}", torch.from_numpy(rows[i][start:start + 12]), final=start == 24)
            engine.step()
    engine.drain()
    engine.step()
    answer = {
        "codes": [engine.codes(f"r{i}") for i in range(2)], "live": engine.worker.omni.live,
        "preemptions": sum(request.num_preemptions for request in requests),
    }
    engine.close()
    return answer


print("RESULT" + json.dumps({architecture: run(architecture, folder) for architecture, folder in folders.items()}))
"""


@pytest.fixture(scope="module")
def answers(checkpoints: Any) -> dict[str, dict[str, Any]]:
    """What each model runner makes of every architecture; one process for each runner, since importing vLLM takes so long."""
    folders = json.dumps({architecture: str(checkpoints(architecture)) for architecture in ARCHITECTURES})
    found = {}
    for runner in ("v1", "v2"):
        command = [sys.executable, "-c", SCRIPT, runner, str(FRAMES), folders]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
        found[runner] = json.loads(line.removeprefix("RESULT"))
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_model_runners_give_the_same_codes_under_preemption(answers: dict[str, Any], architecture: str) -> None:
    first, second = answers["v1"][architecture], answers["v2"][architecture]

    assert first["preemptions"] > 0
    assert second["preemptions"] > 0
    assert first["codes"] == second["codes"]
    assert [len(codes) for codes in first["codes"]] == [FRAMES, FRAMES]
    assert second["live"] == 0
