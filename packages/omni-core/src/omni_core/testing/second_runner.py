"""A request to a talker on vLLM's second model runner on a CPU, in processes of its own: slow, for a small lane only (MR-08).

Which runner there is, is decided before anything imports vLLM, in every process of an engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omni_core.engine import mrv2_lane
from omni_core.model_info import read_model_info
from omni_core.pipeline import PipelineConfig
from omni_core.runner import StageInput
from omni_core.speech import SpeechPrompt
from omni_core.stage import ResolvedStage
from omni_core.target import load_target
from omni_core.testing.ar_stage import running_stage

SMALL: Mapping[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 2, "kv_cache_memory_bytes": 8 << 20}
"""Engine arguments for a tiny checkpoint; tokens of a step and positions come on top, as few as will do."""
_SITE = "from omni_core.engine import mrv2_lane\n\nmrv2_lane.install()\n"
"""sitecustomize.py, which Python runs first in every process."""
_FRAMES = "frames "
_CODES = "codes.audio"
"""Name of the frames of a talker whose output key is ("codes", "audio")."""
_TIMEOUT_S = 240


def frames_of_second_runner(
    folder: Path,
    pipeline: str,
    architecture: str,
    prompt: Mapping[str, Any],
    sampling: Mapping[str, Any],
    *,
    engine_args: Mapping[str, Any],
    site: Path,
) -> list[list[int]]:
    """Return the frames that a pipeline's first stage makes of a request.

    Args:
        folder: The checkpoint.
        pipeline: Target of its pipeline.
        architecture: Target of the talker's class.
        prompt: Fields of a `SpeechPrompt`, as JSON has them.
        sampling: Sampling parameters.
        engine_args: Of the stage.
        site: An empty folder.
    """
    (site / "sitecustomize.py").write_text(_SITE)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    asked = [str(folder), pipeline, architecture, *map(json.dumps, (prompt, sampling, engine_args))]
    done = subprocess.run(
        [sys.executable, "-m", __name__, *asked],
        env={**os.environ, **mrv2_lane.ENVIRONMENT, "PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "INFO", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Using V2 Model Runner" in done.stdout + done.stderr
    printed = next(line for line in done.stdout.splitlines() if line.startswith(_FRAMES))
    frames: list[list[int]] = json.loads(printed.removeprefix(_FRAMES))
    return frames


async def _speak(
    folder: Path, pipeline: PipelineConfig, architecture: str, prompt: SpeechPrompt, sampling: Any, engine_args: Any
) -> list[list[int]]:
    stage = ResolvedStage(
        pipeline=pipeline.model_type,
        topology=pipeline.stages[0],
        model=str(folder),
        architecture=pipeline.architecture(0),
        architecture_target=architecture,
        runner="omni_core.engine.ar.runner:ArRunner",
        model_runner="v2",
        engine_args=engine_args,
    )
    speech = cast("Any", load_target(pipeline.speech or ""))
    inputs = speech(read_model_info(folder)).prepare(prompt).inputs
    frames: list[list[int]] = []
    async with running_stage(stage, timeout_s=_TIMEOUT_S) as runner:
        async for output in runner.run(StageInput("r", inputs, sampling)):
            frames += output.tensors[_CODES].tolist() if _CODES in output.tensors else []
    return frames


def _main(folder: str, pipeline: str, architecture: str, *more: str) -> None:
    prompt, sampling, engine_args = map(json.loads, more)
    found = cast("PipelineConfig", load_target(pipeline))
    asked = _speak(Path(folder), found, architecture, SpeechPrompt(**prompt), sampling, engine_args)
    sys.stdout.write(_FRAMES + json.dumps(asyncio.run(asked)) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
