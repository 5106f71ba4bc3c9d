"""The whole pipeline answers conversations as the reference does: text, codes and sound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core import AsyncOmni
from omni_core.request import OmniOutput
from omni_core.runner import LightChunk

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine_process"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOLERANCE = 1e-3
SMALL = {"max_num_seqs": 8, "max_model_len": 1024, "max_num_batched_tokens": 1024, "kv_cache_memory_bytes": 64 << 20}
FRAME, LACKING = 1920, 555
PARTS = {"audio": "audio_url", "image": "image_url"}


def conversation(case: Any) -> dict[str, Any]:
    """Return a golden case's request as a client of the Python API sends it."""
    files = iter(case.record["inputs"] or ())
    messages, media = [], {}
    for index, message in enumerate(case.request["messages"]):
        parts: list[dict[str, Any]] = []
        for part in message["content"]:
            if (kind := PARTS.get(part["type"])) is None:
                parts.append(part)
                continue
            media[f"messages[{index}].content[{len(parts)}].{kind}"] = (
                case.folder / "inputs" / next(files)["file"]
            ).read_bytes()
            parts.append({"type": kind, kind: {"url": "beside"}})
        messages.append({"role": message["role"], "content": parts})
    return {"chat": {"messages": messages, "voice": case.request["speaker"]}, "media": media}


def sampling(case: Any, **thinker: Any) -> list[dict[str, Any]]:
    talker = {
        "temperature": 0.0,
        "min_tokens": case.record["min_talker_tokens"],
        "max_tokens": case.record["max_frames"],
        "repetition_penalty": case.record["repetition_penalty"],
    }
    return [{"temperature": 0.0, "max_tokens": case.record["max_thinker_tokens"], **thinker}, talker, {}]


@dataclass
class Answer:
    """What was heard and read."""

    outputs: list[OmniOutput] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(output.data for output in self.outputs if output.type == "text")

    @property
    def token_ids(self) -> list[int]:
        return [int(token) for output in self.outputs for token in output.tensors.get("token_ids", ())]

    @property
    def pieces(self) -> list[np.ndarray[Any, Any]]:
        return [output.data[:, 0] for output in self.outputs if output.type == "audio"]

    @property
    def audio(self) -> np.ndarray[Any, Any]:
        return np.concatenate(self.pieces)

    @property
    def codes(self) -> list[list[int]]:
        return [row for output in self.outputs for row in np.asarray(output.tensors.get("codes", ())).tolist()]


async def ask(omni: AsyncOmni, case: Any, *, outputs: Any = None, **thinker: Any) -> Answer:
    answer = Answer()
    async for output in omni.generate(
        conversation(case), sampling_params_list=sampling(case, **thinker), outputs=outputs, timeout_s=120
    ):
        answer.outputs.append(output)
    return answer


def with_pipeline(folder: Path, work: Callable[[AsyncOmni], Coroutine[Any, Any, Any]], *, async_chunk: bool) -> Any:
    """Return what `work` makes of the pipeline of a checkpoint."""

    async def run() -> Any:
        omni = AsyncOmni(folder, async_chunk=async_chunk, stage_overrides={0: SMALL, 1: SMALL}, platform="cpu")
        async with omni, asyncio.timeout(240):
            return await work(omni)

    return asyncio.run(run())


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
        alone = [await ask(omni, case) for case in cases]
        again = await ask(omni, cases[0])
        together = await asyncio.gather(*(ask(omni, case) for case in cases))
        silent = await ask(omni, cases[0], max_tokens=1)
        read = await ask(omni, cases[0], outputs=["text"])
        return alone, again, list(together), silent, read

    alone, again, together, silent, read = with_pipeline(golden_folder, work, async_chunk=async_chunk)

    for case, answer in zip(cases * 2, [*alone, *together], strict=True):
        windows = windows_of(case.record["num_frames"])
        check(case, answer, decode(case, windows) if async_chunk else case.array("wav"))
        assert [len(piece) for piece in answer.pieces if len(piece)] == (
            [size * FRAME - (LACKING if number == 0 else 0) for number, size in enumerate(windows)]
            if async_chunk
            else [len(case.array("wav"))]
        )
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert np.array_equal(again.audio, alone[0].audio)  # sample for sample
    assert silent.text != ""
    assert len(silent.audio) == 0
    assert {output.type for output in read.outputs} == {"text"}
    assert read.text == alone[0].text


def test_sound_begins_before_the_text_ends(omni_folder: Path, cases_of: Callable[[Path], list[Any]]) -> None:
    case = cases_of(omni_folder)[0]

    async def work(omni: AsyncOmni) -> Answer:
        return await ask(omni, case, min_tokens=400, max_tokens=400)

    kinds = [output.type for output in with_pipeline(omni_folder, work, async_chunk=True).outputs]

    last_text = len(kinds) - 1 - kinds[::-1].index("text")
    assert kinds.index("audio") < last_text
