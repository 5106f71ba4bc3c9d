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

PACKAGES = Path(__file__).resolve().parents[1] / "packages"
GOLDEN = Path(os.environ.get("OMNI_GOLDEN", Path(__file__).resolve().parents[2] / "shared" / "golden"))
FRAMES_PER_SECOND = 12.5


def _folders(pattern: str, package: str) -> list[Path]:
    small = (PACKAGES / package / "tests" / "data").glob(f"{pattern}/golden.json")
    return sorted(GOLDEN.glob(pattern)) or sorted(path.parent for path in small)


FOLDERS = _folders("qwen3-tts-*", "omni-models-qwen") + _folders("moss-tts-*", "omni-models-moss")


def _recording(path: Path) -> ReferenceAudio:
    samples, rate = soundfile.read(path, dtype="float32")
    return ReferenceAudio(samples, rate)


def _prompt(folder: Path, case: dict[str, Any]) -> SpeechPrompt:
    """Return a golden request, whose fields are those of the family's reference."""
    request = dict(case["request"])
    audio = request.get("ref_audio", request.get("audio"))
    if request.get("mode") == "continuation":  # the words of the recording and the new ones are one text there
        begin = request["text"].index("And now")
        request["ref_text"], request["text"] = request["text"][:begin].strip(), request["text"][begin:]
    return SpeechPrompt(
        text=request["text"],
        voice=request.get("speaker"),
        language=request.get("language"),
        instructions=request.get("instruct", request.get("instruction")),
        quality=request.get("quality"),
        ambient_sound=request.get("ambient_sound"),
        sound_event=request.get("sound_event"),
        duration_seconds=request["tokens"] / FRAMES_PER_SECOND if "tokens" in request else None,
        ref_audio=None if audio is None else _recording(folder / audio),
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
