"""Stages over Qwen2.5-Omni checkpoints, and golden cases in the forms that the stages take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.runner import Handoff, StageOutput
from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_models_qwen.qwen2_5_omni.handoff import thinker2talker
from omni_models_qwen.qwen2_5_omni.pipeline import QWEN2_5_OMNI
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN

GRIDS = {"image": {"image_grid_thw": np.array([[1, 4, 6]])}}
"""Facts of the images that golden cases have: 96 x 64 pixels in patches of 14, resized to whole pairs of them."""


@pytest.fixture(scope="session")
def omni_folder() -> Path:
    """The checkpoint that comes with these tests."""
    return Path(__file__).parent.parent / "data" / "qwen2.5-omni"


@pytest.fixture(scope="session")
def omni_stage(resolved_stage: Callable[..., ResolvedStage]) -> Callable[..., ResolvedStage]:
    """Return a resolved stage of the pipeline over a checkpoint folder."""

    def make(folder: Path, stage_id: int, **values: Any) -> ResolvedStage:
        edges = [ResolvedEdge(at, at + 1, "c", "x:y") for at in range(2)]
        inputs, outputs = edges[max(stage_id - 1, 0) : stage_id], edges[stage_id : stage_id + 1]
        return resolved_stage(QWEN2_5_OMNI, folder, stage_id, **{"inputs": tuple(inputs), "outputs": tuple(outputs), **values})

    return make


@pytest.fixture(scope="session")
def thinker_inputs() -> Callable[[Any], dict[str, Any]]:
    """Return what the thinker's stage says about a golden case's prompt."""

    def make(case: Any) -> dict[str, Any]:
        ids = np.array(case.record["prompt_token_ids"])
        found: dict[str, Any] = {"prompt_token_ids": ids, "voice": case.request["speaker"], "mm": GRIDS.get(case.id, {})}
        kind = {"audio": 302, "image": 311}.get(case.id)
        if kind is not None:
            places = np.flatnonzero(ids == kind)
            found["placeholders"] = {case.id: np.array([[places[0], len(places)]])}
        return found

    return make


@pytest.fixture(scope="session")
def payload_of(thinker_inputs: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Any]:
    """Return what the thinker hands over for a golden case."""

    def make(case: Any) -> Any:
        tensors = {EMBEDS: case.array("thinker_embeds"), HIDDEN: case.array("thinker_hidden_last")}
        return thinker2talker(Handoff(case.id, thinker_inputs(case), {}), StageOutput(tensors=tensors))

    return make
