from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.engine.messages import Output
from omni_core.engine.outputs import typed_output
from omni_core.payload import encode_payload
from omni_core.pipeline import StagePipelineConfig
from omni_core.request import OmniOutput


def made(
    kind: str | None, tensors: dict[str, Any], *, engine: str | None = None, token_ids: list[int] | None = None
) -> OmniOutput:
    stage = StagePipelineConfig(stage_id=0, model_stage="s", final_output_type=kind, engine_output_type=engine)
    message = Output("internal", 0, encode_payload(tensors), "some text", token_ids or [], True)
    facts = {"sample_rate": 24000, "channels": 2}
    return typed_output(stage, facts, message, request_id="mine", finished=True, finish_reason="stop", metrics={"a": 1.0})


def test_audio_is_float32_by_channels_with_its_rate() -> None:
    output = made("audio", {"audio": np.arange(6, dtype=np.float64)})

    assert (output.data.shape, output.data.dtype, output.sample_rate) == ((3, 2), np.float32, 24000)
    assert (output.request_id, output.finish_reason, output.metrics) == ("mine", "stop", {"a": 1.0})


def test_audio_without_samples_is_empty() -> None:
    assert made("audio", {}).data.shape == (0, 2)


@pytest.mark.parametrize("key", ["latent", "model_outputs", "hidden"])
def test_generic_names_stand_for_the_declared_type(key: str) -> None:
    """EO-09."""
    output = made("latent", {key: np.ones((2, 3)), "other": np.zeros(1)})

    assert output.data.shape == (2, 3)
    assert output.sample_rate is None


def test_text_is_text_and_token_ids_are_beside_it() -> None:
    output = made(None, {}, token_ids=[4, 5])

    assert (output.type, output.data, output.tensors["token_ids"].tolist()) == ("text", "some text", [4, 5])


def test_token_ids_are_a_list() -> None:
    assert made(None, {}, engine="token_ids", token_ids=[4, 5]).data == [4, 5]
    assert made("token_ids", {"token_ids": np.array([6])}).data == [6]
