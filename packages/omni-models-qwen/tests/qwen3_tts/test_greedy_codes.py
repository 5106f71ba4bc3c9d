"""The talker on a real engine makes the reference's codes: one request after another, and all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from omni_core.model_info import ModelInfo
from omni_core.runner import StageInput
from omni_core.stage import ResolvedStage
from omni_core.testing.ar_stage import running_stage
from omni_core.testing.second_runner import SMALL, frames_of_second_runner
from omni_models_qwen.qwen3_tts.speech import Qwen3TTSSpeech

# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine_process"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "max_model_len": 512,
    "kv_cache_memory_bytes": 64 << 20,
}


def _request(case: Any, speech: Qwen3TTSSpeech, name: str) -> StageInput:
    sampling = {
        "temperature": 0.0,
        "min_tokens": 2,
        "max_tokens": case.record["max_frames"],
        "repetition_penalty": case.record["repetition_penalty"],
        "stop_token_ids": [2150],
        "detokenize": False,
    }
    return StageInput(f"{name}-{case.id}", speech.prepare(case.prompt).inputs, sampling)


def test_codes_equal_the_reference_alone_and_in_company(
    golden_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    model_info: Callable[[Path], ModelInfo],
    stage_of: Callable[..., ResolvedStage],
    listen: Callable[..., Coroutine[Any, Any, Any]],
) -> None:
    cases = cases_of(golden_folder)
    speech = Qwen3TTSSpeech(model_info(golden_folder))

    async def run() -> tuple[list[Any], list[Any]]:
        async with running_stage(stage_of(golden_folder, engine_args=ENGINE), timeout_s=240) as runner:
            alone = [await listen(runner, _request(case, speech, "alone")) for case in cases]
            together = await asyncio.gather(*(listen(runner, _request(case, speech, "together")) for case in cases))
            return alone, together

    alone, together = asyncio.run(run())

    expected = [(case.record["codes"], "stop" if case.record["stop_reason"] == "eos" else "length") for case in cases]
    assert alone == expected
    assert together == expected


def test_a_seed_decides_sampled_speech(
    data_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    model_info: Callable[[Path], ModelInfo],
    stage_of: Callable[..., ResolvedStage],
    listen: Callable[..., Coroutine[Any, Any, Any]],
) -> None:
    case = cases_of(data_folder)[0]
    inputs = Qwen3TTSSpeech(model_info(data_folder)).prepare(case.prompt).inputs
    sampling = {"temperature": 0.9, "top_k": 50, "min_tokens": 6, "max_tokens": 6, "stop_token_ids": [2150]}

    async def run() -> list[list[list[int]]]:
        async with running_stage(stage_of(data_folder, engine_args=ENGINE)) as runner:
            requests = [StageInput(f"r{i}", inputs, {**sampling, "seed": seed}) for i, seed in enumerate((1, 1, 2))]
            return [frames for frames, _ in await asyncio.gather(*(listen(runner, request) for request in requests))]

    first, again, other = asyncio.run(run())

    assert len(first) == 6
    assert first == again
    assert [frame[1:] for frame in first] != [frame[1:] for frame in other]


def test_the_second_model_runner_makes_the_same_codes(
    data_folder: Path, cases_of: Callable[[Path], list[Any]], tmp_path: Path
) -> None:
    """MR-08, in the interpreted lane: the same model class, the other adapter."""
    pytest.importorskip("triton")
    case = cases_of(data_folder)[0]

    made = frames_of_second_runner(
        data_folder,
        "omni_models_qwen.qwen3_tts.pipeline:QWEN3_TTS",
        "omni_models_qwen.qwen3_tts.talker:Qwen3TTSTalker",
        {name: getattr(case.prompt, name) for name in ("text", "voice", "language", "instructions")},
        {"temperature": 0.0, "min_tokens": 2, "max_tokens": 12, "repetition_penalty": case.record["repetition_penalty"]},
        engine_args={**SMALL, "max_num_batched_tokens": 64, "max_model_len": 128},
        site=tmp_path,
    )

    assert made == case.record["codes"][:12]
