from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.capabilities import MtpSampling, SampleUniforms, read_capabilities
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.runner import EngineInput
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.input import Qwen3TTSInput
from omni_models_qwen.qwen3_tts.speech import Qwen3TTSSpeech

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def make_talker(
    unloaded_talker: Callable[[ResolvedStage], Any], stage_of: Callable[..., ResolvedStage]
) -> Callable[[Path], Any]:
    """Return an unloaded talker over a checkpoint folder."""
    return lambda folder: unloaded_talker(stage_of(folder))


@pytest.fixture(scope="module")
def prepared(
    model_info: Callable[[Path], ModelInfo], stage_of: Callable[..., ResolvedStage]
) -> Callable[[Path], Callable[[Any], EngineInput]]:
    """Return what turns a case of a folder into the engine's input, on the way a request takes."""

    def of_folder(folder: Path) -> Callable[[Any], EngineInput]:
        speech, process = Qwen3TTSSpeech(model_info(folder)), Qwen3TTSInput(stage_of(folder))
        return lambda case: process(speech.prepare(case.prompt).inputs, {})

    return of_folder


def _rows(talker: Any, slot: int, positions: Any) -> Any:
    slots = torch.full_like(positions, slot)
    return talker.omni_embed(slots, positions, torch.zeros_like(positions))


def test_declared_capabilities_are_the_contract() -> None:
    """MR-08."""
    from omni_models_qwen.qwen3_tts.talker import Qwen3TTSTalker

    record = read_capabilities(Qwen3TTSTalker)

    assert record.computes_inputs
    assert not record.gated_inputs
    assert record.mtp is not None
    assert (record.mtp.payload_key, record.mtp.num_codes) == ("codes.audio", 16)
    assert record.mtp.sample_uniforms == SampleUniforms(steps=15, vocab_size=2048)
    assert record.mtp.sampling == MtpSampling(do_sample=True, temperature=0.9, top_k=50, top_p=1.0)


def test_rows_equal_the_reference(
    golden_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    make_talker: Callable[[Path], Any],
    weights_of: Callable[[Path], dict[str, Any]],
    prepared: Callable[[Path], Callable[[Any], EngineInput]],
) -> None:
    talker, prepare = make_talker(golden_folder), prepared(golden_folder)
    talker.load_weights(weights_of(golden_folder).items())
    for number, case in enumerate(cases_of(golden_folder)):
        made, slot = prepare(case), number % 3  # slots are used again: nothing may be left of earlier requests
        prefill, trailing = case.array("talker_prefill_embeds"), case.array("trailing_text_hidden")
        length = len(made.prompt_token_ids)
        with torch.inference_mode():
            talker.omni_begin(slot, made.model_inputs, length)
            rows = _rows(talker, slot, torch.arange(length))
            later = torch.arange(length, length + len(trailing))
            text = talker.omni_condition(torch.full_like(later, slot), later)

        assert rows.shape == prefill.shape, case.id
        np.testing.assert_allclose(rows.numpy(), prefill, **CLOSE, err_msg=case.id)
        np.testing.assert_allclose(text.numpy(), trailing, **CLOSE, err_msg=case.id)


_K_PROJ = "talker.model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(_K_PROJ), r"lacks the tensors talker\.model\.layers\.1\.self"),
        (lambda w: w.pop("talker.code_predictor.lm_head.3.weight"), r"lacks the tensors talker\.code_predictor\.lm_head\.3"),
        (lambda w: w.update({"talker.model.layers.2.x": torch.zeros(1)}), r"unknown tensors talker\.model\.layers\.2\.x"),
        (lambda w: w.update({"talker.code_predictor.model.norm.weight": torch.zeros(3)}), r"norm\.weight has the shape \[3\]"),
        (lambda w: w.update({"talker.text_projection.linear_fc1.bias": torch.zeros(3)}), r"fc1\.bias has the shape \[3\]"),
        (lambda w: w.update({_K_PROJ: torch.zeros(3, 3)}), r"k_proj\.weight cannot be loaded"),
        (lambda w: w.update({"talker.codec_head.weight": torch.zeros(3, 3)}), r"codec_head\.weight cannot be loaded"),
    ],
    ids=["backbone missing", "predictor missing", "unknown", "predictor shape", "shape", "backbone shape", "head shape"],
)
def test_weights_that_do_not_fit_are_an_error_that_names_them(
    data_folder: Path,
    make_talker: Callable[[Path], Any],
    weights_of: Callable[[Path], dict[str, Any]],
    change: Callable[[dict[str, Any]], Any],
    message: str,
) -> None:
    weights = weights_of(data_folder)
    change(weights)

    with pytest.raises(ConfigError, match=message):
        make_talker(data_folder).load_weights(weights.items())


def test_a_talker_that_was_loaded_takes_new_weights_in_parts(
    data_folder: Path, make_talker: Callable[[Path], Any], weights_of: Callable[[Path], dict[str, Any]]
) -> None:
    """WT-01: trainers send one tensor after the other."""
    name, weights = "talker.code_predictor.lm_head.3.weight", weights_of(data_folder)
    talker = make_talker(data_folder)
    talker.load_weights(weights.items())

    talker.load_weights([(name, weights[name] * 2)])

    assert torch.equal(talker.code_predictor.lm_head[3], (weights[name] * 2).to(talker.code_predictor.lm_head.dtype))
    with pytest.raises(ConfigError, match=r"unknown tensors talker\.x"):
        talker.load_weights([("talker.x", torch.zeros(1))])


def test_marks_are_projected_once_and_anew_after_loading(
    data_folder: Path,
    make_talker: Callable[[Path], Any],
    weights_of: Callable[[Path], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TT-21."""
    talker = make_talker(data_folder)
    talker.load_weights(weights_of(data_folder).items())
    pad, bos, eos = (talker.history.text_ids.new_tensor(i) for i in talker._markers._ids)
    projected: list[int] = []
    project = talker._project

    def counting(ids: Any) -> Any:
        projected.append(len(ids))
        return project(ids)

    monkeypatch.setattr(talker, "_project", counting)
    slots, positions = torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7])
    with torch.inference_mode():
        talker.history.text_ids[slots, positions] = torch.stack([pad, bos, eos])
        first = talker.omni_condition(slots, positions)
        again = talker.omni_condition(slots, positions)
        assert projected == [3]
        assert (first == again).all()
        torch.testing.assert_close(first, project(torch.stack([pad, bos, eos])), rtol=0, atol=1e-5)

        talker.history.text_ids[1, 6] = 5
        mixed = talker.omni_condition(slots, positions)
        assert projected == [3, 3]
        assert (mixed[[0, 2]] == first[[0, 2]]).all()
        assert not torch.equal(mixed[1], first[1])

        talker.load_weights((name, tensor * 2) for name, tensor in weights_of(data_folder).items())
        talker.history.text_ids[1, 6] = bos
        assert not torch.equal(talker.omni_condition(slots, positions), first)
        assert projected == [3, 3, 3]
    assert first.dtype == talker.text_projection.linear_fc2.weight.dtype
