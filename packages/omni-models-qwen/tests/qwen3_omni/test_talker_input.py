from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import RequestError, ServiceError
from omni_core.stage import ResolvedStage
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

IM_START, USER, ASSISTANT, SYSTEM, AUDIO = 300, 258, 266, 271, 331


@pytest.fixture(scope="module")
def process(omni_folder: Path, omni_stage: Callable[..., ResolvedStage]) -> Any:
    from omni_models_qwen.qwen3_omni.talker_input import TalkerInput

    return TalkerInput(omni_stage(omni_folder, 1))


def turn(role: int, *ids: int) -> list[int]:
    return [IM_START, role, 10, *ids, 301, 10]


def payload(ids: list[int], spoken: int = 2, **more: Any) -> dict[str, Any]:
    """Return a payload whose rows hold their position, hidden states as negative numbers."""
    rows = np.repeat(np.arange(len(ids) + spoken, dtype=np.float32)[:, None], 64, axis=1)
    return {"prompt_token_ids": np.array(ids), "mm": {}, EMBEDS: rows, HIDDEN: -rows, **more}


def test_the_talker_reads_the_users_turns_and_nine_rows_more(process: Any) -> None:
    ids = turn(SYSTEM, 1, 2) + turn(USER, 3, 4) + turn(ASSISTANT, 5) + turn(USER, AUDIO, 6) + [IM_START, ASSISTANT, 10]
    first, second, opening = range(7, 14), range(20, 27), range(27, 30)

    made = process(payload(ids), {})

    rows = made.rows[:, 0].tolist()
    media = [-float(row) if row == 23 else float(row) for row in second]
    assert rows == [*map(float, first), *media, *map(float, opening), 0, 0, 0, 0, 0, 30, 31]
    assert len(made.prompt_token_ids) == len(rows) - 1
    assert set(made.prompt_token_ids) == {2148}
    assert made.model_inputs["kinds"].tolist() == [0] * 10 + [1] + [0] * 3 + [0, 0, 0, 2, 2, 2, 2, 3, 0]


def test_the_last_six_rows_of_the_prompt_name_the_voice(process: Any) -> None:
    made = process(payload([*turn(USER, 3), IM_START, ASSISTANT, 10], voice="Aiden"), {})

    assert made.model_inputs["codes"][:, 0].tolist() == [-1] * 9 + [2155, 2156, 2157, 2303, 2148, 2149]
    assert (made.model_inputs["codes"][:, 1:] == -1).all()


def test_rows_keep_the_dtype_of_the_thinker(process: Any) -> None:
    given = payload([*turn(USER, 3), IM_START, ASSISTANT, 10])
    for name in (EMBEDS, HIDDEN):
        given[name] = torch.from_numpy(given[name]).bfloat16()

    assert process(given, {}).rows.dtype == torch.bfloat16


def test_an_unknown_voice_is_refused_with_the_names_there_are(process: Any) -> None:
    with pytest.raises(RequestError, match="no voice 'nobody'") as caught:
        process(payload([IM_START, ASSISTANT, 10], voice="nobody"), {})

    assert caught.value.param == "voice"
    assert "aiden, chelsie, ethan" in str(caught.value)


def test_a_prompt_that_asks_for_no_answer_is_refused(process: Any) -> None:
    with pytest.raises(RequestError, match="does not ask the assistant"):
        process(payload(turn(USER, 3)), {})


def test_a_reply_without_a_spoken_token_can_only_end(process: Any) -> None:
    made = process(payload([*turn(USER, 3), IM_START, ASSISTANT, 10], spoken=0), {})

    assert made.sampling["allowed_token_ids"] == [2150]
    assert len(made.prompt_token_ids) == len(made.rows) == 1


def test_too_few_rows_are_an_error(process: Any) -> None:
    given = payload([*turn(USER, 3), IM_START, ASSISTANT, 10])
    given[HIDDEN] = given[HIDDEN][:4]

    with pytest.raises(ServiceError, match="the thinker sent"):
        process(given, {})
