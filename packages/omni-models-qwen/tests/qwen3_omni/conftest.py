"""Stages over Qwen3-Omni checkpoints, and golden cases in the forms that the stages take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_models_qwen.qwen3_omni.pipeline import QWEN3_OMNI_MOE
from omni_models_qwen.talking.thinker_states import EMBEDS, HIDDEN

GRIDS = {"image": {"image_grid_thw": np.array([[1, 4, 6]])}}
"""Facts of the images that golden cases have: 96 x 64 pixels in patches of 16."""


@pytest.fixture(scope="session")
def omni_folder() -> Path:
    """The checkpoint that comes with these tests."""
    return Path(__file__).parent.parent / "data" / "qwen3-omni-moe"


@pytest.fixture(scope="session")
def omni_stage(resolved_stage: Callable[..., ResolvedStage]) -> Callable[..., ResolvedStage]:
    """Return a resolved stage of the pipeline over a checkpoint folder."""

    def make(folder: Path, stage_id: int, *, stream: dict[str, Any] | None = None, **values: Any) -> ResolvedStage:
        edge = ResolvedEdge(stage_id - 1, stage_id, "c", "x:y", stream=stream or {}, async_chunk=True)
        return resolved_stage(QWEN3_OMNI_MOE, folder, stage_id, **{"async_chunk": True, "inputs": (edge,), **values})

    return make


@pytest.fixture(scope="session")
def payload_of() -> Callable[..., dict[str, Any]]:
    """Return what the thinker hands over for a golden case: with all rows, or with so many of the reply's."""

    def make(case: Any, spoken: int | None = None) -> dict[str, Any]:
        ids = np.array(case.record["prompt_token_ids"])
        end = None if spoken is None else len(ids) + spoken
        return {
            "prompt_token_ids": ids,
            "mm": GRIDS.get(case.id, {}),
            "voice": case.request["speaker"],
            EMBEDS: case.array("thinker_embeds")[:end],
            HIDDEN: case.array("thinker_hidden_accept_layer")[:end],
        }

    return make
