"""The whole pipeline answers conversations as the reference does: text, codes and sound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core import AsyncOmni
from omni_core.runner import LightChunk
from omni_core.testing.conversations import Answer, ask, golden_conversation, with_pipeline

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine_process"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOLERANCE = 1e-3
FRAME, LACKING = 1920, 555


def sampling(case: Any, **thinker: Any) -> list[dict[str, Any]]:
    talker = {
        "temperature": 0.0,
        "min_tokens": case.record["min_talker_tokens"],
        "max_tokens": case.record["max_frames"],
        "repetition_penalty": case.record["repetition_penalty"],
    }
    return [{"temperature": 0.0, "max_tokens": case.record["max_thinker_tokens"], **thinker}, talker, {}]


async def answer_to(omni: AsyncOmni, case: Any, *, outputs: Any = None, **thinker: Any) -> Answer:
    return await ask(omni, golden_conversation(case.folder, case.record), sampling(case, **thinker), outputs=outputs)


@pytest.fixture(scope="module")
def decode(omni_stage: Callable[..., Any]) -> Callable[..., np.ndarray[Any, Any]]:
    """Return what Code2Wav makes of a checkpoint's codes in windows; without windows it is what the reference makes."""
    from omni_models_qwen.qwen3_omni.code2wav import Qwen3OmniCode2Wav

    def make(case: Any, windows: list[int]) -> np.ndarray[Any, Any]:
        model = Qwen3OmniCode2Wav.load(omni_stage(case.folder, 2))
        payload = {"codes": case.array("codes"), "windows": np.array(windows)}
        found: np.ndarray[Any, Any] = model.step([LightChunk("r", model.begin("r", {}), payload, True)])[0]["audio"][:, 0]
        return found

    return make


def windows_of(frames: int) -> list[int]:
    """Return the windows of the bundled deploy file."""
    sizes = [min(4, frames)]
    while (left := frames - sum(sizes)) > 0:
        sizes.append(min(25, left))
    return sizes


def check(case: Any, answer: Answer, wanted: np.ndarray[Any, Any]) -> None:
    assert answer.token_ids == case.record["thinker_tokens"], case.id
    assert answer.codes == case.record["codes"], case.id
    assert len(answer.audio) == len(case.array("wav")), case.id
    assert np.abs(answer.audio - wanted).max() < TOLERANCE, case.id
    assert [output.finished for output in answer.outputs].index(True) == len(answer.outputs) - 1
    assert {output.sample_rate for output in answer.outputs if output.type == "audio"} == {24000}


@pytest.mark.parametrize("async_chunk", [True, False], ids=["chunks", "whole"])
def test_answers_equal_the_reference_alone_and_all_at_once(
    async_chunk: bool, golden_folder: Path, cases_of: Callable[[Path], list[Any]], decode: Callable[..., Any]
) -> None:
    """Text, audio and images in one batch, each like alone; B18 to B25 hold for each of them."""
    cases = cases_of(golden_folder)

    async def work(omni: AsyncOmni) -> Any:
        alone = [await answer_to(omni, case) for case in cases]
        again = await answer_to(omni, cases[0])
        together = await asyncio.gather(*(answer_to(omni, case) for case in cases))
        silent = await answer_to(omni, cases[0], max_tokens=1)
        read = await answer_to(omni, cases[0], outputs=["text"])
        return alone, again, list(together), silent, read

    alone, again, together, silent, read = with_pipeline(golden_folder, work, async_chunk=async_chunk)

    one_by_one = []
    for case, answer in zip(cases * 2, [*alone, *together], strict=True):
        windows = windows_of(case.record["num_frames"])
        check(case, answer, decode(case, windows) if async_chunk else case.array("wav"))
        ends = [frames * FRAME - LACKING for frames in np.cumsum(windows).tolist()] if async_chunk else [len(case.array("wav"))]
        heard = np.cumsum([len(piece) for piece in answer.pieces if len(piece)]).tolist()
        assert set(heard) <= set(ends), case.id
        one_by_one.append(heard == ends)
    # Windows that are complete before the last one was taken leave as one piece, on a busy machine now and then.
    assert sum(one_by_one) * 2 >= len(one_by_one)
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert np.array_equal(again.audio, alone[0].audio)  # sample for sample
    assert silent.text != ""
    assert len(silent.audio) == 0
    assert {output.type for output in read.outputs} == {"text"}
    assert read.text == alone[0].text


def test_sound_begins_before_the_text_ends(omni_folder: Path, cases_of: Callable[[Path], list[Any]]) -> None:
    case = cases_of(omni_folder)[0]

    async def work(omni: AsyncOmni) -> Answer:
        return await answer_to(omni, case, min_tokens=400, max_tokens=400)

    kinds = [output.type for output in with_pipeline(omni_folder, work, async_chunk=True).outputs]

    last_text = len(kinds) - 1 - kinds[::-1].index("text")
    assert kinds.index("audio") < last_text
