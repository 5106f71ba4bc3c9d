"""The whole pipeline answers conversations as the reference does: text, codes and sound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="the pipeline's engines are vLLM's")

from omni_core import AsyncOmni
from omni_core.errors import RequestError
from omni_core.testing.conversations import Answer, ask, golden_conversation, with_pipeline

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine_process"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOLERANCE = 2e-3
NOISE_SEED = 1234
"""The reference drew each case's noise from a generator with this seed."""


def sampling(case: Any, **thinker: Any) -> list[dict[str, Any]]:
    record = case.record
    first = {"temperature": 0.0, "max_tokens": record["max_thinker_tokens"], "repetition_penalty": 1.0, **thinker}
    talker = {"temperature": 0.0, "max_tokens": record["max_frames"], "repetition_penalty": record["repetition_penalty"]}
    return [first, talker, {"seed": NOISE_SEED}]


async def answer_to(omni: AsyncOmni, case: Any, *, outputs: Any = None, **thinker: Any) -> Answer:
    return await ask(omni, golden_conversation(case.folder, case.record), sampling(case, **thinker), outputs=outputs)


def check(case: Any, answer: Answer) -> None:
    assert answer.token_ids == case.record["thinker_tokens"], case.id
    assert [code for (code,) in answer.codes] == case.record["codes"], case.id
    assert len(answer.audio) == len(case.array("wav")), case.id
    assert np.abs(answer.audio - case.array("wav")).max() < TOLERANCE, case.id
    assert [output.finished for output in answer.outputs].index(True) == len(answer.outputs) - 1
    assert not {name for output in answer.outputs for name in output.tensors} & {"thinker_embeds", "thinker_hidden"}


def test_answers_equal_the_reference_alone_and_all_at_once(golden_folder: Path, cases_of: Callable[[Path], list[Any]]) -> None:
    """Text, audio and images in one batch, each like alone."""
    cases = cases_of(golden_folder)

    async def work(omni: AsyncOmni) -> Any:
        alone = [await answer_to(omni, case) for case in cases]
        together = list(await asyncio.gather(*(answer_to(omni, case) for case in cases)))
        silent = await answer_to(omni, cases[0], max_tokens=1)
        read = await answer_to(omni, cases[0], outputs=["text"])
        nobody = golden_conversation(cases[0].folder, cases[0].record)
        nobody["chat"]["voice"] = "nobody"
        with pytest.raises(RequestError, match="nobody"):
            await ask(omni, nobody, sampling(cases[0]))
        return alone, together, silent, read, await answer_to(omni, cases[0])

    alone, together, silent, read, again = with_pipeline(golden_folder, work)

    for case, answer in zip(cases * 2, [*alone, *together], strict=True):
        check(case, answer)
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert np.array_equal(again.audio, alone[0].audio)
    assert len(silent.audio) == 0
    assert {output.type for output in read.outputs} == {"text"}
    assert read.text == alone[0].text
