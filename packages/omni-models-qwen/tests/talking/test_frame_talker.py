"""What talkers of a 12 Hz codec have in common, on vLLM's layers in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omni_core.capabilities import MtpSampling
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_omni.pipeline import QWEN3_OMNI_MOE
from omni_models_qwen.qwen3_tts.input import Qwen3TTSInput
from omni_models_qwen.qwen3_tts.pipeline import QWEN3_TTS
from omni_models_qwen.qwen3_tts.speech import Qwen3TTSSpeech
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

DATA = Path(__file__).parents[1] / "data"
FAMILIES = {
    "qwen3_tts": (QWEN3_TTS, 0, DATA / "qwen3-tts-custom_voice", ("code_predictor",)),
    "qwen3_omni": (QWEN3_OMNI_MOE, 1, DATA / "qwen3-omni-moe", ("code_predictor", "mark_rows")),
}
SLOT = 1


@dataclass
class Family:
    """A family's talker, and a request in its slot."""

    talker: Any
    folder: Path
    length: int
    in_place: tuple[str, ...]
    """Parts whose weights are written where they are."""
    unloaded_over: Callable[[Path], Any]
    """Returns its talker over another folder."""

    def rows(self, positions: Any) -> Any:
        return self.talker.omni_embed(torch.full_like(positions, SLOT), positions, torch.zeros_like(positions))


@pytest.fixture(scope="module", params=FAMILIES)
def family(
    request: pytest.FixtureRequest,
    resolved_stage: Callable[..., ResolvedStage],
    unloaded_talker: Callable[[ResolvedStage], Any],
    weights_of: Callable[[Path], dict[str, Any]],
    cases_of: Callable[[Path], list[Any]],
    model_info: Callable[[Path], ModelInfo],
) -> Family:
    pipeline, stage_id, folder, in_place = FAMILIES[request.param]
    stage, case = resolved_stage(pipeline, folder, stage_id), cases_of(folder)[0]
    talker = unloaded_talker(stage)
    talker.load_weights(weights_of(folder).items())
    if request.param == "qwen3_tts":
        made = Qwen3TTSInput(stage)(Qwen3TTSSpeech(model_info(folder)).prepare(case.prompt).inputs, {})
    else:
        from omni_models_qwen.qwen3_omni.talker_input import TalkerInput

        rows = {EMBEDS: case.array("thinker_embeds"), HIDDEN: case.array("thinker_hidden_accept_layer")}
        made = TalkerInput(stage)({"prompt_token_ids": case.record["prompt_token_ids"], **rows}, {})
    with torch.inference_mode():
        talker.omni_begin(SLOT, made.model_inputs, len(made.prompt_token_ids))
        if made.rows is not None:
            talker.omni_ingest(SLOT, 0, made.rows)
    return Family(
        talker,
        folder,
        len(made.prompt_token_ids),
        in_place,
        lambda other: unloaded_talker(resolved_stage(pipeline, other, stage_id)),
    )


def test_rows_do_not_depend_on_order_or_company(family: Family) -> None:
    positions = torch.arange(family.length)
    order = torch.randperm(family.length, generator=torch.Generator().manual_seed(0))

    with torch.inference_mode():
        whole = family.rows(positions)
        shuffled = family.rows(positions[order])
        halves = torch.cat([family.rows(positions[:20]), family.rows(positions[20:])])

    torch.testing.assert_close(shuffled, whole[order])
    torch.testing.assert_close(halves, whole)


def test_the_next_row_of_a_step_is_the_row_computed_from_history(family: Family) -> None:
    """A preempted request is computed again from its history, and must go on as if nothing had happened."""
    talker, greedy = family.talker, [MtpSampling(do_sample=False)]
    slots, positions, ids = torch.tensor([SLOT]), torch.tensor([family.length]), torch.tensor([77])
    hidden = torch.randn(1, 48, generator=torch.Generator().manual_seed(1))

    with torch.inference_mode():
        text = talker.omni_condition(slots, positions)
        following, codes = talker.mtp(ids, talker.embed_input_ids(ids), hidden, text, req_infos=greedy)
        talker.omni_record(slots, positions, codes.to(torch.int32))
        again = family.rows(positions)

    assert codes.shape == (1, 16)
    assert codes[0, 0] == 77
    torch.testing.assert_close(again, following)


def test_only_codes_and_the_end_of_speech_can_win(family: Family) -> None:
    head = family.talker.codec_head
    head.quant_method.process_weights_after_loading(head)  # what vLLM's loader does for all layers
    with torch.inference_mode():
        logits = family.talker.compute_logits(torch.randn(2, 48))

    possible = torch.isfinite(logits[0]).nonzero().flatten().tolist()
    assert possible == [*range(2048), 2150]


def test_vllm_does_not_take_away_what_is_written_in_place(family: Family) -> None:
    seen = set(family.talker.modules())

    for name in family.in_place:
        assert not seen & set(getattr(family.talker, name).modules())
    assert family.talker in seen
    assert family.talker.text_projection in seen


def test_a_checkpoint_with_other_frames_is_refused(family: Family, tmp_path: Path) -> None:
    config = json.loads((family.folder / "config.json").read_text())
    config["talker_config"]["num_code_groups"] = 8
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match="frames of 8 codes"):
        family.unloaded_over(tmp_path)
