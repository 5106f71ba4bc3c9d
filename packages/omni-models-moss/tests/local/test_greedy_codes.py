"""The talker on a real engine makes the reference's codes: one request after another, and all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.testing.second_runner import SMALL, frames_of_second_runner

# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Spoken = tuple[list[list[int]], str | None]


def test_codes_equal_the_reference_alone_and_in_company(
    golden_folder: Path, cases_of: Callable[[Path], list[Any]], talker: Callable[..., Any]
) -> None:
    cases = cases_of(golden_folder)

    async def run() -> tuple[list[Spoken], list[Spoken]]:
        async with talker(golden_folder, max_num_seqs=8) as running:

            async def speak(name: str, case: Any) -> Spoken:
                sampling = {"max_tokens": case.record["max_frames"], "repetition_penalty": case.record["repetition_penalty"]}
                return await running.speak(f"{name}-{case.id}", case.prompt, **sampling)

            alone = [await speak("alone", case) for case in cases]
            together = await asyncio.gather(*(speak("together", case) for case in cases))
            return alone, together

    alone, together = asyncio.run(run())

    expected = [(case.record["codes"], "stop" if case.record["stop_reason"] == "eos" else "length") for case in cases]
    assert alone == expected
    assert together == expected


def test_a_seed_decides_sampled_speech(
    data_folder: Path, cases_of: Callable[[Path], list[Any]], talker: Callable[..., Any]
) -> None:
    prompt = cases_of(data_folder)[0].prompt
    # 151645 is the pipeline's own end, which this small vocabulary does not have: min_tokens must not make a column of it.
    sampling = {"temperature": 1.7, "top_k": 25, "top_p": 0.8, "min_tokens": 6, "max_tokens": 6, "stop_token_ids": [151645]}

    async def run() -> list[Spoken]:
        async with talker(data_folder) as running:
            asked = (running.speak(f"r{i}", prompt, **sampling, seed=seed) for i, seed in enumerate((1, 1, 2)))
            return await asyncio.gather(*asked)

    (first, _), (again, _), (other, _) = asyncio.run(run())

    assert len(first) == 6
    assert first == again
    assert first != other


def test_the_second_model_runner_makes_the_same_codes(
    data_folder: Path, cases_of: Callable[[Path], list[Any]], tmp_path: Path
) -> None:
    """MR-08, in the interpreted lane: the same model class, the other adapter."""
    pytest.importorskip("triton")
    case = cases_of(data_folder)[0]

    made = frames_of_second_runner(
        data_folder,
        "omni_models_moss.pipeline:MOSS_TTS_LOCAL",
        "omni_models_moss.local.talker:MossTTSLocalTalker",
        {name: getattr(case.prompt, name) for name in ("text", "language", "quality", "ambient_sound")},
        {"temperature": 0.0, "max_tokens": 24, "repetition_penalty": case.record["repetition_penalty"]},
        engine_args={**SMALL, "max_num_batched_tokens": 256, "max_model_len": 256},
        site=tmp_path,
    )

    assert made == case.record["codes"]
