from __future__ import annotations

import json
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

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 3,
    "max_model_len": 512,
    "kv_cache_memory_bytes": 64 << 20,
}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
GREEDY = [MtpSampling(do_sample=False)]


@pytest.fixture(scope="module")
def make_talker(unloaded: Callable[[ResolvedStage], Any], stage_of: Callable[..., ResolvedStage]) -> Callable[[Path], Any]:
    """Return an unloaded talker over a checkpoint folder."""
    return lambda folder: unloaded(stage_of(folder, engine_args=ENGINE))


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


def _loaded(talker: Any, folder: Path) -> Any:
    talker.load_weights(_weights(folder).items())
    return talker


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
    prepared: Callable[[Path], Callable[[Any], EngineInput]],
) -> None:
    talker, prepare = _loaded(make_talker(golden_folder), golden_folder), prepared(golden_folder)
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


@pytest.fixture(scope="module")
def talker(data_folder: Path, make_talker: Callable[[Path], Any]) -> Any:
    return _loaded(make_talker(data_folder), data_folder)


@pytest.fixture
def begun(
    talker: Any,
    data_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    prepared: Callable[[Path], Callable[[Any], EngineInput]],
) -> tuple[Any, int]:
    """A talker with a request in slot 1, and the length of its prompt."""
    made = prepared(data_folder)(cases_of(data_folder)[0])
    talker.omni_begin(1, made.model_inputs, len(made.prompt_token_ids))
    return talker, len(made.prompt_token_ids)


def test_rows_do_not_depend_on_order_or_company(begun: tuple[Any, int]) -> None:
    talker, length = begun
    positions = torch.arange(length)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(0))

    with torch.inference_mode():
        whole = _rows(talker, 1, positions)
        shuffled = _rows(talker, 1, positions[order])
        halves = torch.cat([_rows(talker, 1, positions[:20]), _rows(talker, 1, positions[20:])])

    torch.testing.assert_close(shuffled, whole[order])
    torch.testing.assert_close(halves, whole)


def test_the_next_row_of_a_step_is_the_row_computed_from_history(begun: tuple[Any, int]) -> None:
    """A preempted request is computed again from its history, and must go on as if nothing had happened."""
    talker, length = begun
    slots, positions, ids = torch.tensor([1]), torch.tensor([length]), torch.tensor([77])
    hidden = torch.randn(1, 48, generator=torch.Generator().manual_seed(1))

    with torch.inference_mode():
        text = talker.omni_condition(slots, positions)
        following, codes = talker.mtp(ids, talker.embed_input_ids(ids), hidden, text, req_infos=GREEDY)
        talker.omni_record(slots, positions, codes.to(torch.int32))
        again = _rows(talker, 1, positions)

    assert codes.shape == (1, 16)
    assert codes[0, 0] == 77
    torch.testing.assert_close(again, following)


def test_only_codes_and_the_end_of_speech_can_win(talker: Any) -> None:
    head = talker.codec_head
    head.quant_method.process_weights_after_loading(head)  # what vLLM's loader does for all layers
    with torch.inference_mode():
        logits = talker.compute_logits(torch.randn(2, 48))

    possible = torch.isfinite(logits[0]).nonzero().flatten().tolist()
    assert possible == [*range(2048), 2150]


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
    data_folder: Path, make_talker: Callable[[Path], Any], change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    weights = _weights(data_folder)
    change(weights)

    with pytest.raises(ConfigError, match=message):
        make_talker(data_folder).load_weights(weights.items())


def test_a_talker_that_was_loaded_takes_new_weights_in_parts(data_folder: Path, make_talker: Callable[[Path], Any]) -> None:
    """WT-01: trainers send one tensor after the other."""
    name, weights = "talker.code_predictor.lm_head.3.weight", _weights(data_folder)
    talker = make_talker(data_folder)
    talker.load_weights(weights.items())

    talker.load_weights([(name, weights[name] * 2)])

    assert torch.equal(talker.code_predictor.lm_head[3], (weights[name] * 2).to(talker.code_predictor.lm_head.dtype))
    with pytest.raises(ConfigError, match=r"unknown tensors talker\.x"):
        talker.load_weights([("talker.x", torch.zeros(1))])


def test_a_checkpoint_with_other_frames_is_refused(
    data_folder: Path, tmp_path: Path, make_talker: Callable[[Path], Any]
) -> None:
    config = json.loads((data_folder / "config.json").read_text())
    config["talker_config"]["num_code_groups"] = 8
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match="frames of 8 codes"):
        make_talker(tmp_path)


def test_marks_are_projected_once_and_anew_after_loading(
    data_folder: Path, make_talker: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TT-21."""
    talker = _loaded(make_talker(data_folder), data_folder)
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

        talker.load_weights((name, tensor * 2) for name, tensor in _weights(data_folder).items())
        talker.history.text_ids[1, 6] = bos
        assert not torch.equal(talker.omni_condition(slots, positions), first)
        assert projected == [3, 3, 3]
    assert first.dtype == talker.text_projection.linear_fc2.weight.dtype
