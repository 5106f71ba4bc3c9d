from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.model_info import ModelInfo
from omni_core.stage import ResolvedStage

pytest.importorskip("torch")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def processor_of(stage_of: Callable[..., ResolvedStage]) -> Callable[[Path], Any]:
    from omni_models_moss.local.input import LocalInput

    return cache(lambda folder: LocalInput(stage_of(folder, 0)))


@pytest.fixture(scope="module")
def prepared(processor_of: Callable[[Path], Any], model_info: Callable[[Path], ModelInfo]) -> Callable[[Any], Any]:
    """Return what turns a case into the engine's input, on the way a request takes."""
    from omni_models_moss.local.speech import LocalSpeech

    return lambda case: processor_of(case.folder)(LocalSpeech(model_info(case.folder)).prepare(case.prompt).inputs, {})


def test_rows_and_recordings_equal_the_reference(case: Any, prepared: Callable[[Any], Any]) -> None:
    made = prepared(case)

    expected, recording = case.array("prompt_rows"), case.array("ref_codes")
    codes = made.model_inputs["codes"]
    assert made.prompt_token_ids == expected[:, 0].tolist()
    assert np.array_equal(np.where(codes < 0, 1024, codes), expected[:, 1:])
    if case.continues:
        assert np.array_equal(made.handoff["ref_codes"], recording)
    else:
        assert made.handoff["ref_codes"] is None


def test_the_checkpoint_says_what_ends_the_speech(
    data_folder: Path, cases_of: Callable[[Path], list[Any]], prepared: Callable[[Any], Any]
) -> None:
    assert prepared(cases_of(data_folder)[0]).sampling == {"stop_token_ids": [326]}


def test_prompts_share_what_is_computed_only_if_their_frames_are_equal(
    processor_of: Callable[[Path], Any], data_folder: Path
) -> None:
    make, rate = processor_of(data_folder), 48000
    noise = np.random.default_rng(1).normal(0, 0.1, (2, 2 * rate)).astype(np.float32)

    def key(**payload: Any) -> str | None:
        return make({"text": "Hello", **payload}, {}).cache_key

    recordings = [key(ref_audio=samples, ref_audio_rate=rate, continues=True) for samples in (noise[0], noise[1], noise[0])]
    assert key() == key(text="Other words") == ""
    assert recordings[0] == recordings[2]
    assert len({None, "", *recordings}) == 4


@pytest.mark.parametrize("slot", ["<|video_pad|>", "<|vision_pad|>"], ids=["spoken", "reference"])
@pytest.mark.parametrize("use", ["none", "imitated", "continued"])
def test_a_text_that_spells_the_slot_of_a_frame_shares_with_nobody(
    use: str, slot: str, processor_of: Callable[[Path], Any], data_folder: Path
) -> None:
    """With a recording, too: its frames would be taken for those behind the text that is spelt."""
    noise = np.random.default_rng(1).normal(0, 0.1, 48000).astype(np.float32)
    recording = {} if use == "none" else {"ref_audio": noise, "ref_audio_rate": 48000, "continues": use == "continued"}
    make = processor_of(data_folder)

    assert make({"text": f"Hello {slot}", **recording}, {}).cache_key is None
    assert make({"text": "Hello", **recording}, {}).cache_key is not None
