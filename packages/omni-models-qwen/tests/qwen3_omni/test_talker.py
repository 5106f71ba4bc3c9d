from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.capabilities import MtpSampling, read_capabilities
from omni_core.errors import ConfigError
from omni_core.runner import EngineInput
from omni_core.stage import ResolvedStage

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def make_talker(
    unloaded_talker: Callable[[ResolvedStage], Any], omni_stage: Callable[..., ResolvedStage]
) -> Callable[[Path], Any]:
    """Return an unloaded talker over a checkpoint folder."""
    return lambda folder: unloaded_talker(omni_stage(folder, 1))


@pytest.fixture(scope="module")
def loaded_talker(make_talker: Callable[[Path], Any], weights_of: Callable[[Path], dict[str, Any]]) -> Callable[[Path], Any]:
    """Return a loaded talker over a checkpoint folder."""

    def make(folder: Path) -> Any:
        talker = make_talker(folder)
        talker.load_weights(weights_of(folder).items())
        return talker

    return make


@pytest.fixture(scope="module")
def prepared(omni_stage: Callable[..., ResolvedStage], payload_of: Callable[..., Any]) -> Callable[..., EngineInput]:
    """Return a case as the engine's input."""
    from omni_models_qwen.qwen3_omni.talker_input import TalkerInput

    return lambda case, spoken=None: TalkerInput(omni_stage(case.folder, 1))(payload_of(case, spoken), {})


def _begin(talker: Any, slot: int, made: EngineInput) -> int:
    length = len(made.prompt_token_ids)
    with torch.inference_mode():
        talker.omni_begin(slot, made.model_inputs, length)
        talker.omni_ingest(slot, 0, made.rows)
    return length


def _rows(talker: Any, slot: int, positions: Any) -> Any:
    return talker.omni_embed(torch.full_like(positions, slot), positions, torch.zeros_like(positions))


def test_declared_capabilities_are_the_contract() -> None:
    """MR-08; the settings of the other codes are the reference's and no request's."""
    from omni_models_qwen.qwen3_omni.talker import Qwen3OmniTalker

    record = read_capabilities(Qwen3OmniTalker)

    assert record.computes_inputs
    assert record.gated_inputs
    assert record.row_width == "thinker_hidden_size"
    assert record.mtp is not None
    assert (record.mtp.payload_key, record.mtp.num_codes) == ("codes.audio", 16)
    assert record.mtp.sampling == MtpSampling(do_sample=True, temperature=1.0, top_k=50, top_p=0.8)


def test_rows_equal_the_reference(
    golden_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    loaded_talker: Callable[[Path], Any],
    prepared: Callable[..., EngineInput],
) -> None:
    talker = loaded_talker(golden_folder)
    for number, case in enumerate(cases_of(golden_folder)):
        made, slot = prepared(case), number % 3  # slots are used again: nothing may be left of earlier requests
        prefill, trailing = case.array("talker_prefill_embeds"), case.array("trailing_text_hidden")
        with torch.inference_mode():
            length = _begin(talker, slot, made)
            rows = _rows(talker, slot, torch.arange(length))
            later = torch.arange(length, length + len(trailing) + 3)
            text = talker.omni_condition(torch.full_like(later, slot), later)
            pad = talker.text_projection(talker.marks[0])

        np.testing.assert_allclose(rows.numpy(), prefill, **CLOSE, err_msg=case.id)
        np.testing.assert_allclose(text[: len(trailing)].numpy(), trailing, **CLOSE, err_msg=case.id)
        np.testing.assert_allclose(text[len(trailing) :].numpy(), np.tile(pad.numpy(), (3, 1)), **CLOSE, err_msg=case.id)


@pytest.fixture(scope="module")
def talker(omni_folder: Path, loaded_talker: Callable[[Path], Any]) -> Any:
    return loaded_talker(omni_folder)


@pytest.fixture
def a_case(omni_folder: Path, cases_of: Callable[[Path], list[Any]]) -> Any:
    """The question with an image."""
    return cases_of(omni_folder)[1]


def test_rows_may_arrive_one_by_one(talker: Any, a_case: Any, prepared: Callable[..., EngineInput]) -> None:
    whole, first = prepared(a_case), prepared(a_case, 1)
    with torch.inference_mode():
        length = _begin(talker, 0, whole)
        later = torch.arange(length, len(whole.rows) + 5)
        wanted = talker.omni_condition(torch.zeros_like(later), later)
        _begin(talker, 1, first)
        for position in range(length, len(whole.rows)):
            talker.omni_ingest(1, position, whole.rows[position : position + 1])
        found = talker.omni_condition(torch.ones_like(later), later)

    assert torch.equal(found, wanted)


def test_positions_of_an_image_are_two_dimensional(talker: Any, a_case: Any, prepared: Callable[..., EngineInput]) -> None:
    ids = np.array(a_case.array("talker_prefill_ids"))
    place = int(np.flatnonzero(ids == 311)[0])
    length = _begin(talker, 2, prepared(a_case))

    positions, delta = talker.omni_rope(2)

    assert positions.shape == (3, length)
    patches = positions[:, place : place + 6] - place
    assert patches.tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    assert delta == int(positions.max()) + 1 - length == -3


def test_positions_of_text_count_up(
    talker: Any, omni_folder: Path, cases_of: Any, prepared: Callable[..., EngineInput]
) -> None:
    length = _begin(talker, 2, prepared(cases_of(omni_folder)[0]))

    positions, delta = talker.omni_rope(2)

    assert positions.tolist() == [list(range(length))] * 3
    assert delta == 0


def test_a_request_that_ended_leaves_no_rows(talker: Any, a_case: Any, prepared: Callable[..., EngineInput]) -> None:
    _begin(talker, 1, prepared(a_case))

    with torch.inference_mode():
        talker.omni_end(1)

    assert not talker.rows.read(torch.tensor([1]), torch.tensor([3])).any()


def test_files_of_other_stages_are_not_read(talker: Any) -> None:
    names = ("thinker.model.layers.0.mlp.gate.weight", "code2wav.code_embedding.weight", "thinker.visual.pos_embed.weight")

    assert [talker.is_unused_checkpoint_weight(name) for name in names] == [True] * 3
    assert not talker.is_unused_checkpoint_weight("talker.model.norm.weight")
    assert not talker.is_unused_checkpoint_weight("thinker.model.embed_tokens.weight")


_EXPERT = "talker.model.layers.1.mlp.experts.3.up_proj.weight"
_TABLE = "thinker.model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(_EXPERT), r"lacks the tensors talker\.model\.layers\.1\.mlp\.experts\.3\.up_proj"),
        (lambda w: w.pop("talker.model.layers.0.mlp.shared_expert_gate.weight"), r"lacks .*shared_expert_gate"),
        (lambda w: w.pop("talker.code_predictor.lm_head.3.weight"), r"lacks the tensors talker\.code_predictor\.lm_head\.3"),
        (lambda w: w.pop(_TABLE), r"lacks the tensors thinker\.model\.embed_tokens"),
        (lambda w: w.update({"talker.x": torch.zeros(1)}), r"unknown tensors talker\.x"),
        (lambda w: w.update({_TABLE: w[_TABLE][:, :32]}), r"embed_tokens\.weight has the shape \[384, 32\]"),
        (lambda w: w.update({_TABLE: w[_TABLE][:100]}), r"embed_tokens\.weight has the shape \[100, 64\]"),
        (lambda w: w.update({"talker.hidden_projection.linear_fc1.bias": torch.zeros(3)}), r"fc1\.bias has the shape \[3\]"),
    ],
    ids=["expert", "shared gate", "predictor", "table", "unknown", "table's width", "table's length", "shape"],
)
def test_weights_that_do_not_fit_are_an_error_that_names_them(
    omni_folder: Path,
    make_talker: Callable[[Path], Any],
    weights_of: Callable[[Path], dict[str, Any]],
    change: Callable[[dict[str, Any]], Any],
    message: str,
) -> None:
    weights = weights_of(omni_folder)
    change(weights)

    with pytest.raises(ConfigError, match=message):
        make_talker(omni_folder).load_weights(weights.items())
