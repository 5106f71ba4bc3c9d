"""Speak one request on a real talker and print its frames as JSON: `speak.py FOLDER RUNNER REQUEST`, all on one line."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from omni_core.model_info import read_model_info
from omni_core.runner import StageInput
from omni_core.speech import SpeechPrompt
from omni_core.stage import ResolvedStage
from omni_core.testing.ar_stage import running_stage
from omni_models_moss.handoff import CODES
from omni_models_moss.local.speech import LocalSpeech
from omni_models_moss.pipeline import MOSS_TTS_LOCAL


async def speak(folder: Path, model_runner: Any, prompt: SpeechPrompt, sampling: dict[str, Any]) -> list[list[int]]:
    stage = ResolvedStage(
        pipeline=MOSS_TTS_LOCAL.model_type,
        topology=MOSS_TTS_LOCAL.stages[0],
        model=str(folder),
        architecture=MOSS_TTS_LOCAL.architecture(0),
        architecture_target="omni_models_moss.local.talker:MossTTSLocalTalker",
        runner="omni_core.engine.ar.runner:ArRunner",
        model_runner=model_runner,
        engine_args={
            "dtype": "float32",
            "enforce_eager": True,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 256,
            "max_model_len": 256,
            "kv_cache_memory_bytes": 8 << 20,
        },
    )
    inputs = LocalSpeech(read_model_info(folder)).prepare(prompt).inputs
    frames: list[list[int]] = []
    async with running_stage(stage, timeout_s=200) as runner:
        async for output in runner.run(StageInput("r", inputs, sampling)):
            frames += output.tensors[CODES].tolist() if CODES in output.tensors else []
    return frames


if __name__ == "__main__":
    request = json.loads(sys.argv[3])
    made = asyncio.run(speak(Path(sys.argv[1]), sys.argv[2], SpeechPrompt(**request["prompt"]), request["sampling"]))
    print("frames", json.dumps(made))
