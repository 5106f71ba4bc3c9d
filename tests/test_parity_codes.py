"""Codes through the Python API against the reference implementation: every golden case, all at once."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from omni_core import AsyncOmni, ReferenceAudio, SpeechPrompt

GOLDEN = Path(os.environ.get("OMNI_GOLDEN", Path(__file__).resolve().parents[2] / "shared" / "golden"))
SMALL = Path(__file__).resolve().parents[1] / "packages" / "omni-models-qwen" / "tests" / "data"
FOLDERS = sorted(GOLDEN.glob("qwen3-tts-*")) or sorted(path.parent for path in SMALL.glob("*/golden.json"))


def _prompt(folder: Path, case: dict[str, Any]) -> SpeechPrompt:
    request = case["request"]
    reference = None
    if "ref_audio" in request:
        samples, rate = soundfile.read(folder / request["ref_audio"], dtype="float32")
        reference = ReferenceAudio(samples, rate)
    return SpeechPrompt(
        text=request["text"],
        voice=request.get("speaker"),
        language=request["language"],
        instructions=request.get("instruct"),
        ref_audio=reference,
        ref_text=request.get("ref_text"),
        x_vector_only_mode=request.get("x_vector_only_mode"),
        non_streaming_mode=request.get("non_streaming_mode"),
        max_new_tokens=case["max_frames"],
    )


async def _codes(omni: AsyncOmni, folder: Path, case: dict[str, Any]) -> tuple[np.ndarray[Any, Any], str | None]:
    greedy = {"temperature": 0.0, "repetition_penalty": case["repetition_penalty"]}
    parts, reason = [], None
    async for output in omni.generate(_prompt(folder, case), sampling_params_list=[greedy, {}]):
        parts += [output.tensors["codes"]] if "codes" in output.tensors else []
        reason = output.finish_reason or reason
    return np.concatenate(parts), reason


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_codes_and_stop_reasons_equal_the_reference(folder: Path) -> None:
    cases = json.loads((folder / "golden.json").read_text())["cases"]

    async def collect() -> list[tuple[np.ndarray[Any, Any], str | None]]:
        async with AsyncOmni(str(folder)) as omni:
            return list(await asyncio.gather(*(_codes(omni, folder, case) for case in cases)))

    for case, (codes, reason) in zip(cases, asyncio.run(collect()), strict=True):
        assert codes.tolist() == case["codes"], case["id"]
        assert reason == {"eos": "stop", "length": "length"}[case["stop_reason"]], case["id"]
