from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from omni_models_qwen.qwen3_tts.codec_config import CodecDecoderConfig
from omni_models_qwen.qwen3_tts.codec_quantizer import CodebookTables
from omni_models_qwen.qwen3_tts.tiny import _CODEC

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]


class Drawn:
    """Hands out random tensors under any name, and keeps them."""

    def __init__(self) -> None:
        self.given: dict[str, Tensor] = {}
        self.skipped: list[str] = []

    def take(self, name: str, *shape: int) -> Tensor:
        self.given[name] = torch.rand(shape)
        if name.endswith("cluster_usage"):
            self.given[name][0] = 0  # a row that training never used
        return self.given[name]

    def skip(self, name: str) -> None:
        self.skipped.append(name)


def test_a_frame_is_the_sum_of_its_projected_rows() -> None:
    config = dataclasses.replace(CodecDecoderConfig.read(_CODEC, where=""), codebook_size=5, num_quantizers=3)
    weights = Drawn()
    tables = CodebookTables(weights, config)
    codes = torch.tensor([[[1, 2, 4], [0, 3, 0]]])

    found = tables(codes)

    books = ["quantizer.rvq_first.vq.layers.0", "quantizer.rvq_rest.vq.layers.0", "quantizer.rvq_rest.vq.layers.1"]
    for frame in range(2):
        expected = torch.zeros(config.codebook_dim)
        for book, code in zip(books, codes[0, frame], strict=True):
            usage = weights.given[f"{book}._codebook.cluster_usage"][code].clamp(min=1e-5)
            row = weights.given[f"{book}._codebook.embedding_sum"][code] / usage
            expected += weights.given[f"{book.partition('.vq')[0]}.output_proj.weight"][:, :, 0] @ row
        torch.testing.assert_close(found[0, :, frame], expected)
    assert weights.skipped == ["quantizer.rvq_first.input_proj.weight", "quantizer.rvq_rest.input_proj.weight"]
