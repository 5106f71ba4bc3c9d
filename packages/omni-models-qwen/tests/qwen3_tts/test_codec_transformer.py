from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from omni_core.modelkit.weights import TensorReader
from omni_models_qwen.qwen3_tts.codec_config import CodecDecoderConfig
from omni_models_qwen.qwen3_tts.codec_flow import Flow, MemoryPlan
from omni_models_qwen.qwen3_tts.codec_transformer import WindowTransformer

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]


def test_a_frame_attends_to_a_window_that_includes_itself(tiny_base: Path) -> None:
    folder = tiny_base / "speech_tokenizer"
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    raw["decoder_config"]["num_hidden_layers"] = 1  # more layers reach further back, one window each
    config = CodecDecoderConfig.read(raw, where="config.json")
    plan = MemoryPlan()
    transformer = WindowTransformer(TensorReader.of_folder(folder, "decoder."), plan, config)
    x = torch.randn(1, config.latent_dim, 100)
    other = x.clone()
    other[..., 10] += 1

    first, second = (transformer(value, Flow([plan.fresh(torch.device("cpu"), torch.float32)])) for value in (x, other))

    changed = (first != second).any(1)[0].nonzero()[:, 0].tolist()
    assert changed == list(range(10, 10 + config.sliding_window))
