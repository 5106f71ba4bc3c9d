"""The talker on a real engine makes the reference's codes: one request after another, and all at once."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import multiprocessing.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.model_info import ModelInfo
from omni_core.runner import StageInput
from omni_core.stage import ResolvedStage
from omni_models_moss.handoff import CODES
from omni_models_moss.local.speech import LocalSpeech

# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,  # prompts come in pieces, between the steps of others
    "max_model_len": 512,
    "kv_cache_memory_bytes": 64 << 20,
    "enable_prefix_caching": True,  # so that what was spoken alone is partly there when it is spoken again in company
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # An engine's start sets these in this process; they must not reach the next test.
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    yield
    gc.collect()  # what a stopped engine leaves is collected under this module's filters, not in some later test


@pytest.fixture(scope="module", autouse=True)
def _fork_server() -> None:
    # The first engine core pays for the imports, the others are forked from there.
    multiprocessing.util.get_temp_dir()  # the server's socket is in it, so it must outlive a test's own folder
    multiprocessing.set_forkserver_preload(["omni_core.engine.ar.preload"])


@asynccontextmanager
async def _running(stage: ResolvedStage) -> AsyncIterator[Any]:
    from omni_core.engine.ar.runner import ArRunner

    runner = ArRunner(stage)
    try:
        await runner.start()
        yield runner
    finally:
        await runner.stop()


def _request(case: Any, speech: LocalSpeech, name: str) -> StageInput:
    sampling = {
        "temperature": 0.0,
        "max_tokens": case.record["max_frames"],
        "repetition_penalty": case.record["repetition_penalty"],
        "detokenize": False,
    }
    return StageInput(f"{name}-{case.id}", speech.prepare(case.prompt).inputs, sampling)


async def _speak(runner: Any, request: StageInput) -> tuple[list[list[int]], str | None]:
    frames, reason = [], None
    async for output in runner.run(request):
        if CODES in output.tensors:
            frames += np.asarray(output.tensors[CODES]).tolist()
        reason = output.finish_reason
    return frames, reason


def test_codes_equal_the_reference_alone_and_in_company(
    golden_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    model_info: Callable[[Path], ModelInfo],
    talker_stage: Callable[..., ResolvedStage],
) -> None:
    cases = cases_of(golden_folder)
    speech = LocalSpeech(model_info(golden_folder))

    async def run() -> tuple[list[Any], list[Any]]:
        async with _running(talker_stage(golden_folder, engine_args=ENGINE)) as runner, asyncio.timeout(120):
            alone = [await _speak(runner, _request(case, speech, "alone")) for case in cases]
            together = await asyncio.gather(*(_speak(runner, _request(case, speech, "together")) for case in cases))
            return alone, together

    alone, together = asyncio.run(run())

    expected = [(case.record["codes"], "stop" if case.record["stop_reason"] == "eos" else "length") for case in cases]
    assert alone == expected
    assert together == expected


def test_a_seed_decides_sampled_speech(
    data_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    model_info: Callable[[Path], ModelInfo],
    talker_stage: Callable[..., ResolvedStage],
) -> None:
    case = cases_of(data_folder)[0]
    inputs = LocalSpeech(model_info(data_folder)).prepare(case.prompt).inputs
    # 151645 is the pipeline's own end, which this small vocabulary does not have: min_tokens must not make a column of it.
    sampling = {"temperature": 1.7, "top_k": 25, "top_p": 0.8, "min_tokens": 6, "max_tokens": 6, "stop_token_ids": [151645]}

    async def run() -> list[list[list[int]]]:
        async with _running(talker_stage(data_folder, engine_args=ENGINE)) as runner, asyncio.timeout(120):
            requests = [StageInput(f"r{i}", inputs, {**sampling, "seed": seed}) for i, seed in enumerate((1, 1, 2))]
            return [frames for frames, _ in await asyncio.gather(*(_speak(runner, request) for request in requests))]

    first, again, other = asyncio.run(run())

    assert len(first) == 6
    assert first == again
    assert first != other


def test_the_second_model_runner_makes_the_same_codes(data_folder: Path, cases_of: Callable[[Path], list[Any]]) -> None:
    """MR-08, in the interpreted lane: the same model class, the other adapter."""
    pytest.importorskip("triton")
    case, here = cases_of(data_folder)[0], Path(__file__).parent
    prompt = {name: getattr(case.prompt, name) for name in ("text", "language", "quality", "ambient_sound")}
    sampling = {"temperature": 0.0, "max_tokens": 24, "repetition_penalty": case.record["repetition_penalty"]}
    path = os.pathsep.join(filter(None, [str(here.parent / "data" / "mrv2_lane"), os.environ.get("PYTHONPATH")]))

    done = subprocess.run(
        [sys.executable, str(here / "speak.py"), str(data_folder), "v2", json.dumps({"prompt": prompt, "sampling": sampling})],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "INFO"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert "Using V2 Model Runner" in done.stdout + done.stderr
    printed = next(line for line in done.stdout.splitlines() if line.startswith("frames "))
    assert json.loads(printed.removeprefix("frames ")) == case.record["codes"]
