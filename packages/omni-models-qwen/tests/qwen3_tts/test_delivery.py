"""Where audio is made does not change it: one stage, or two with the first frame from the talker, against the reference.

Both paths are for CUDA with the second model runner; `OMNI_TEST_CUDA_PATHS` lets them run here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core import AsyncOmni
from omni_core.observe import series
from omni_core.observe.registry import Registry
from omni_core.request import OmniOutput

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOLERANCE = 1e-3
FRAME = 1920
ENGINE = """devices: null, dtype: float32, max_num_seqs: 8, max_model_len: 512, gpu_memory_utilization: null,
    kv_cache_memory_bytes: 67108864, enforce_eager: true, async_scheduling: false"""
FUSED = """base_config: qwen3_tts_fused_single_gpu.yaml
model_runner: v1
stages:
  - {stage_id: 0, %s, additional_config: {%s}}
"""
TWO = """base_config: qwen3_tts.yaml
stages:
  - {stage_id: 0, %s}
connectors: {connector_of_shared_memory: {extra: {%s}}}
"""
PATHS = {
    "fused": FUSED % (ENGINE, "talker_stream_first_audio: false"),
    "fused-first": FUSED % (ENGINE, "talker_stream_first_audio: true"),
    "two-first": TWO % (ENGINE, "talker_first_audio: true"),
    "two-first-adaptive": TWO % (ENGINE, "codec_chunk_adaptive: true, initial_codec_chunk_frames: 4"),
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_TEST_CUDA_PATHS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


async def _speak(omni: AsyncOmni, case: Any) -> list[OmniOutput]:
    greedy = {
        "temperature": 0.0,
        "repetition_penalty": case.record["repetition_penalty"],
        "max_tokens": case.record["max_frames"],
    }
    sampling = [greedy] + [{}] * (len(omni.pipeline.stages) - 1)
    return [output async for output in omni.generate(case.prompt, sampling_params_list=sampling)]


def _run(folder: Path, deploy: Path, cases: list[Any]) -> tuple[list[str], list[list[OmniOutput]], list[list[OmniOutput]]]:
    """Return the stages' runners, and the outputs of each case alone and of all at once."""

    async def collect() -> tuple[list[str], list[list[OmniOutput]], list[list[OmniOutput]]]:
        async with AsyncOmni(str(folder), deploy_config=str(deploy)) as omni, asyncio.timeout(200):
            alone = [await _speak(omni, case) for case in cases]
            together = await asyncio.gather(*(_speak(omni, case) for case in cases))
            return [stage.runner for stage in omni.pipeline.stages], alone, list(together)

    return asyncio.run(collect())


@pytest.mark.parametrize("path", ["fused", "two-first"])
def test_frames_tokens_and_seconds_are_counted_once(
    path: str, data_folder: Path, cases_of: Callable[[Path], list[Any]], tmp_path: Path
) -> None:
    """A stage that decodes what it made itself has made it, and not taken it in as well."""
    deploy = tmp_path / "mine.yaml"
    deploy.write_text(PATHS[path])
    case = cases_of(data_folder)[0]

    async def speak() -> tuple[list[OmniOutput], Registry]:
        async with AsyncOmni(str(data_folder), deploy_config=str(deploy)) as omni, asyncio.timeout(200):
            outputs = await _speak(omni, case)
            # A stage tells its numbers with its heartbeats, and the last ones may be under way.
            registry, last = omni.telemetry.registry, len(omni.pipeline.stages) - 1
            while registry.get(series.AUDIO_SECONDS, **_labels(last)) < _seconds(outputs) - 1e-6 or min(
                registry.get(series.FRAMES, **_labels(stage)) for stage in range(last + 1)
            ) < _frames(outputs):
                await asyncio.sleep(0.1)
            return outputs, registry

    outputs, metrics = asyncio.run(speak())

    frames = _frames(outputs)
    tokens = sum(output.metrics.get("generated_tokens", 0) for output in outputs)
    last = 0 if path == "fused" else 1
    assert metrics.get(series.AUDIO_SECONDS, **_labels(last)) == pytest.approx(_seconds(outputs))
    assert metrics.get(series.FRAMES, **_labels(0)) == frames
    if path == "fused":
        assert metrics.get(series.TOKENS, **_labels(0)) == tokens
    else:
        assert metrics.get(series.FRAMES, **_labels(1)) == frames


def _labels(stage: int) -> dict[str, str]:
    return {"stage": str(stage), "replica": "0"}


def _frames(outputs: list[OmniOutput]) -> int:
    return sum(len(output.tensors["codes"]) for output in outputs if "codes" in output.tensors)


def _seconds(outputs: list[OmniOutput]) -> float:
    return sum(len(output.data) for output in outputs if output.data is not None) / 24000


def _check(case: Any, outputs: list[OmniOutput]) -> None:
    heard = np.concatenate([output.data for output in outputs])[:, 0]
    codes = np.concatenate([output.tensors["codes"] for output in outputs if "codes" in output.tensors])
    assert codes.tolist() == case.record["codes"], case.id
    assert heard.shape == case.array("wav").shape, case.id
    assert np.abs(heard - case.array("wav")).max() < TOLERANCE, case.id
    assert outputs[-1].finish_reason == {"eos": "stop", "length": "length"}[case.record["stop_reason"]], case.id
    assert {output.sample_rate for output in outputs} == {24000}
    assert [output.finished for output in outputs].index(True) == len(outputs) - 1


@pytest.mark.parametrize("path", PATHS)
def test_audio_is_the_references_wherever_it_is_made(
    path: str, golden_folder: Path, cases_of: Callable[[Path], list[Any]], tmp_path: Path
) -> None:
    """TT-02, TT-05, TT-08 (72 frames of reference), TT-09, TT-10, TT-11."""
    deploy = tmp_path / "mine.yaml"
    deploy.write_text(PATHS[path])
    cases = cases_of(golden_folder)

    runners, alone, together = _run(golden_folder, deploy, cases)

    assert runners[0].endswith(":FusedRunner" if "fused" in path else ":FirstAudioRunner")
    firsts = []
    for case, outputs in zip(cases * 2, [*alone, *together], strict=True):
        _check(case, outputs)
        if path != "fused" and len(case.record["codes"]):
            has_reference = case.array("ref_codes") is not None
            planned = 4 if has_reference and path == "two-first-adaptive" else 1
            firsts.append(len(outputs[0].data) // FRAME == planned)
    # Pieces that nobody has taken yet come as one, on a busy machine now and then the first two, too.
    assert sum(firsts) * 2 >= len(firsts)
