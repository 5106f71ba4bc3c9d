"""What the stages hand on: rows without the embeddings of media, and codes without the id that ended them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import RequestError, ServiceError
from omni_core.payload import decode_payload, encode_payload
from omni_core.runner import Handoff, StageOutput

pytest.importorskip("torch", reason="rows are tensors")

import torch

from omni_models_qwen.qwen2_5_omni.handoff import talker2code2wav, thinker2talker
from omni_models_qwen.qwen2_5_omni.talker_input import TalkerInput
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN

pytestmark = pytest.mark.engine

IDS = np.array([1, 2, 311, 311, 3])
"""A prompt with two positions of an image."""


def handed(inputs: dict[str, Any], reply: int = 3, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    count = len(IDS) + reply
    embeds = torch.arange(count * 2, dtype=dtype).reshape(count, 2)
    hidden = -100 * embeds
    handoff = Handoff("r", {"prompt_token_ids": IDS, "voice": "Ethan", **inputs}, {})
    return embeds, hidden, thinker2talker(handoff, StageOutput(tensors={EMBEDS: embeds, HIDDEN: hidden}))


def read(omni_folder: Path, omni_stage: Any, payload: Any, **options: Any) -> Any:
    stage = omni_stage(omni_folder, 1, engine_args={"additional_config": options})
    return TalkerInput(stage)(decode_payload(bytearray(encode_payload(payload))), {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_sums_with_room_for_the_voice(dtype: Any) -> None:
    embeds, hidden, payload = handed({}, dtype=dtype)

    assert torch.equal(payload["rows"][:5], (embeds + hidden)[:5])
    assert not payload["rows"][5].any()
    assert torch.equal(payload["rows"][6:], (embeds + hidden)[5:])
    assert payload["rows"].dtype == dtype
    assert set(payload) == {"rows", "prompt_token_ids", "voice"}


@pytest.mark.parametrize(
    "facts",
    [
        {"mm": {"image_grid_thw": np.array([[1, 2, 4]])}, "placeholders": {"image": np.array([[1, 3]])}},
        {"mm": {"image_grid_thw": np.array([[1, 2, 4]])}},
    ],
    ids=["places", "no places"],
)
def test_positions_of_media_are_read_without_embeddings(omni_folder: Path, omni_stage: Any, facts: dict[str, Any]) -> None:
    embeds, hidden, payload = handed(facts)

    made = read(omni_folder, omni_stage, payload)

    assert torch.equal(made.rows[2:4], hidden[2:4])
    assert torch.equal(made.rows[:2], (embeds + hidden)[:2])
    assert torch.equal(made.rows[6:], (embeds + hidden)[5:])
    assert list(made.prompt_token_ids) == [8296] * 5 + [8292, 8293]
    assert made.model_inputs["mark"] == 317
    assert made.sampling == {"stop_token_ids": [8292, 8294]}


def test_positions_of_an_image_have_three_dimensions_where_the_opening_is_the_published_one(
    omni_folder: Path, omni_stage: Any
) -> None:
    _, _, payload = handed({"mm": {"image_grid_thw": np.array([[1, 2, 4]])}})

    plain = read(omni_folder, omni_stage, payload)
    made = read(omni_folder, omni_stage, payload, codec_opening=True)

    assert "positions" not in plain.model_inputs
    assert made.model_inputs["positions"].tolist() == [[0, 1, 2, 2, 4, 5, 6], [0, 1, 2, 2, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]]
    assert made.model_inputs["delta"] == 0


def test_a_reply_of_one_token_leaves_only_the_end_to_be_sampled(omni_folder: Path, omni_stage: Any) -> None:
    _, _, payload = handed({}, reply=0)

    made = read(omni_folder, omni_stage, payload)

    assert list(made.prompt_token_ids) == [8292]
    assert made.rows.shape == (1, 2)
    assert made.sampling["allowed_token_ids"] == [8294]


def test_an_unknown_voice_is_refused_and_so_are_too_few_rows(omni_folder: Path, omni_stage: Any) -> None:
    _, _, payload = handed({})

    with pytest.raises(RequestError, match="there is no voice 'nobody'") as raised:
        read(omni_folder, omni_stage, {**payload, "voice": "nobody"})
    with pytest.raises(ServiceError, match="5 rows for a prompt of 5 positions"):
        read(omni_folder, omni_stage, {**payload, "rows": payload["rows"][:5]})

    assert raised.value.param == "voice"
    assert "Chelsie, Ethan" in raised.value.hint


@pytest.mark.parametrize(
    ("tokens", "codes"), [([5, 6, 8294], [[5], [6]]), ([5, 6], [[5], [6]]), ([8292], np.zeros((0, 1))), ([], np.zeros((0, 1)))]
)
def test_codes_go_on_without_the_end(tokens: list[int], codes: Any) -> None:
    handoff = Handoff("r", {"voice": "Ethan", "ends": [8292, 8294]}, {})

    payload = talker2code2wav(handoff, StageOutput(token_ids=tokens))

    assert payload["voice"] == "Ethan"
    assert payload["codes"].shape == np.shape(codes)
    assert payload["codes"].tolist() == np.asarray(codes).tolist()
