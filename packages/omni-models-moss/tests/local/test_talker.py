from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.capabilities import MtpSampling, SampleUniforms, read_capabilities
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedStage

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
GREEDY = MtpSampling(do_sample=False)


@pytest.fixture(scope="module")
def make_talker(unloaded: Callable[[ResolvedStage], Any], stage_of: Callable[..., ResolvedStage]) -> Callable[[Path], Any]:
    """Return an unloaded talker over a checkpoint folder."""
    return lambda folder: unloaded(stage_of(folder, 0, engine_args=ENGINE))


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.fixture(scope="module")
def loaded(make_talker: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return the talker of a checkpoint folder."""
    found: dict[Path, Any] = {}

    def load(folder: Path) -> Any:
        if folder not in found:
            found[folder] = make_talker(folder)
            found[folder].load_weights(_weights(folder).items())
        return found[folder]

    return load


def _begin(talker: Any, slot: int, case: Any) -> int:
    """Give a slot the rows of a case; return their number."""
    rows = case.array("prompt_rows")
    codes = np.where(rows[:, 1:] == 1024, -1, rows[:, 1:]).astype(np.int32)
    talker.omni_begin(slot, {"text_ids": rows[:, 0].astype(np.int32), "codes": codes}, len(rows))
    return len(rows)


def _rows(talker: Any, slot: int, positions: Any) -> Any:
    return talker.omni_embed(torch.full_like(positions, slot), positions, torch.zeros_like(positions))


def test_declared_capabilities_fit_together() -> None:
    """MR-08."""
    from omni_models_moss.local.talker import MossTTSLocalTalker

    record = read_capabilities(MossTTSLocalTalker)

    assert record.computes_inputs
    assert record.cacheable_prompts
    assert record.mtp is not None
    assert (record.mtp.payload_key, record.mtp.num_codes) == ("codes.audio", 12)
    assert record.mtp.sample_uniforms == SampleUniforms(steps=12, vocab_size=1024)
    assert record.mtp.sampling == MtpSampling(do_sample=True, temperature=1.7, top_k=25, top_p=0.8, repetition_penalty=1.0)


def test_rows_equal_the_reference(
    golden_folder: Path, cases_of: Callable[[Path], list[Any]], loaded: Callable[[Path], Any]
) -> None:
    talker = loaded(golden_folder)
    for number, case in enumerate(cases_of(golden_folder)):
        slot = number % 3  # slots are used again: nothing may be left of earlier requests
        with torch.inference_mode():
            rows = _rows(talker, slot, torch.arange(_begin(talker, slot, case)))

        np.testing.assert_allclose(rows.numpy(), case.array("backbone_prefill_embeds"), **CLOSE, err_msg=case.id)


def test_decisions_and_codes_follow_from_the_references_hidden_states(case: Any, loaded: Callable[[Path], Any]) -> None:
    hidden = case.array("backbone_hidden_first3")
    if hidden is None:
        pytest.skip("the golden data has hidden states for the first case only")
    talker, hidden = loaded(case.folder), torch.from_numpy(hidden)
    slots = torch.zeros(3, dtype=torch.long)
    with torch.inference_mode():
        decisions = talker.local.decide(hidden)
        logits = talker.compute_logits(hidden)
        _, codes = talker.mtp(slots, hidden, hidden, torch.zeros(3, 64), slots=slots, req_infos=[GREEDY] * 3)

    np.testing.assert_allclose(decisions.numpy(), case.array("continue_logits_first3"), rtol=1e-4, atol=5e-3)
    assert codes.tolist() == case.record["codes"][:3]
    possible = torch.isfinite(logits[0]).nonzero().flatten().tolist()
    assert possible == sorted([talker.facts.assistant_slot, talker.facts.audio_end])
    assert torch.equal(logits[:, talker.facts.assistant_slot], decisions[:, 0])


@pytest.fixture
def begun(data_folder: Path, cases_of: Callable[[Path], list[Any]], loaded: Callable[[Path], Any]) -> tuple[Any, int]:
    """A talker whose slot 1 holds a request, and the length of its prompt."""
    talker = loaded(data_folder)
    return talker, _begin(talker, 1, cases_of(data_folder)[0])


def _step(talker: Any, position: int, seed: int, sampling: MtpSampling) -> tuple[Any, Any]:
    """Predict a frame from some hidden state and record it; return the next row and the frame."""
    slots, positions = torch.tensor([1]), torch.tensor([position])
    ids = torch.tensor([talker.facts.assistant_slot])
    hidden = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        text = talker.omni_condition(slots, positions)
        following, codes = talker.mtp(ids, talker.embed_input_ids(ids), hidden, text, slots=slots, req_infos=[sampling])
        talker.omni_record(slots, positions, codes.to(torch.int32))
    return following, codes


def test_the_next_row_of_a_step_is_the_row_computed_from_history(begun: tuple[Any, int]) -> None:
    """A preempted request is computed again from its history, and must go on as if nothing had happened."""
    talker, length = begun

    following, codes = _step(talker, length, 1, GREEDY)

    assert codes.shape == (1, 12)
    with torch.inference_mode():
        torch.testing.assert_close(_rows(talker, 1, torch.tensor([length])), following)


def test_a_penalty_counts_the_frames_that_were_made_and_not_the_prompts(
    begun: tuple[Any, int], data_folder: Path, cases_of: Callable[[Path], list[Any]]
) -> None:
    talker, length = begun
    _, first = _step(talker, length, 1, MtpSampling(do_sample=False, repetition_penalty=1e6))
    _, unlike = _step(talker, length + 1, 1, MtpSampling(do_sample=False, repetition_penalty=1e6))

    continued = cases_of(data_folder)[1]
    assert continued.continues  # its prompt ends with frames
    again = _step(talker, _begin(talker, 1, continued), 1, MtpSampling(do_sample=False, repetition_penalty=1e6))[1]

    assert (first != unlike).all()
    assert torch.equal(again, first)


_K_PROJ = "transformer.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(_K_PROJ), r"lacks the tensors transformer\.layers\.1\.self"),
        (lambda w: w.pop("audio_embeddings.3.weight"), r"lacks the tensors audio_embeddings\.3"),
        (lambda w: w.pop("local_transformer.h.0.ln_2.bias"), r"lacks the tensors local_transformer\.h\.0\.ln_2\.bias"),
        (lambda w: w.update({"transformer.layers.2.x": torch.zeros(1)}), r"unknown tensors transformer\.layers\.2\.x"),
        (lambda w: w.update({"local_transformer.ln_f.weight": torch.zeros(3)}), r"ln_f\.weight has the shape \[3\]"),
        (lambda w: w.update({_K_PROJ: torch.zeros(3, 3)}), r"k_proj\.weight cannot be loaded"),
    ],
    ids=["backbone missing", "codes missing", "block missing", "unknown", "shape", "backbone shape"],
)
def test_weights_that_do_not_fit_are_an_error_that_names_them(
    data_folder: Path, make_talker: Callable[[Path], Any], change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    weights = _weights(data_folder)
    change(weights)

    with pytest.raises(ConfigError, match=message):
        make_talker(data_folder).load_weights(weights.items())


def test_tied_heads_may_be_in_the_file_too(data_folder: Path, make_talker: Callable[[Path], Any]) -> None:
    weights = _weights(data_folder)
    weights["text_lm_head.weight"] = weights["transformer.embed_tokens.weight"]
    weights["audio_lm_heads.0.weight"] = weights["audio_embeddings.0.weight"]

    assert "local.codes.weight" in make_talker(data_folder).load_weights(weights.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_vq": 16}, "frames of 16 codes"),
        ({"n_vq": 0}, "frames of 0 codes"),
        ({"audio_vocab_size": 2048}, "codes below 2048"),
        ({"audio_end_token_id": 151645}, "the id 151645 of audio_end is none of a vocabulary"),
        ({"gpt2_config": None}, "gpt2_config is missing"),
        ({"gpt2_config": {"n_embd": 32, "n_head": 4}}, "a local transformer of 32 does not fit a backbone of 64"),
    ],
    ids=["too many codes", "no codes", "large codebooks", "unknown id", "no local transformer", "narrow local transformer"],
)
def test_a_checkpoint_of_another_form_is_refused(
    data_folder: Path, tmp_path: Path, make_talker: Callable[[Path], Any], changes: dict[str, Any], message: str
) -> None:
    config = json.loads((data_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))

    with pytest.raises(ConfigError, match=message) as error:
        make_talker(tmp_path)

    assert error.value.where == str(tmp_path / "config.json")
