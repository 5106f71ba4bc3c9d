from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from omni_models_qwen.qwen3_tts.codec_convolutions import CausalConv, CausalUpsample, SnakeBeta
from omni_models_qwen.qwen3_tts.codec_flow import Flow, MemoryPlan

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]


class Given:
    """Hands out tensors by name, like a `TensorReader`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def take(self, name: str, *shape: int) -> Tensor:
        assert tuple(self._tensors[name].shape) == shape
        return self._tensors[name]


def run(layer: Any, plan: MemoryPlan, x: Tensor, sizes: list[int]) -> Tensor:
    state = plan.fresh(torch.device("cpu"), x.dtype)
    pieces = []
    for piece in x.split(sizes, dim=-1):
        flow = Flow([state])
        pieces.append(layer(piece, flow))
        flow.commit()
    return torch.cat(pieces, -1)


@pytest.mark.parametrize(("kernel", "stride"), [(16, 8), (10, 5), (6, 3), (2, 2), (9, 3)])
def test_upsampling_is_a_transposed_convolution_cut_at_the_right(kernel: int, stride: int) -> None:
    weight, bias = torch.randn(4, 3, kernel, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    plan, x = MemoryPlan(), torch.randn(1, 4, 7, dtype=torch.float64)
    layer = CausalUpsample(Given({"up.conv.weight": weight, "up.conv.bias": bias}), plan, "up", (4, 3, kernel), stride=stride)

    expected = F.conv_transpose1d(x, weight, bias, stride=stride)[..., : 7 * stride]

    torch.testing.assert_close(run(layer, plan, x, [7]), expected)
    torch.testing.assert_close(run(layer, plan, x, [1, 4, 2]), expected)


@pytest.mark.parametrize("dilation", [1, 3, 9])
def test_causal_convolution_sees_zeros_before_the_beginning(dilation: int) -> None:
    weight, bias = torch.randn(3, 4, 7, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    plan, x = MemoryPlan(), torch.randn(1, 4, 30, dtype=torch.float64)
    layer = CausalConv(Given({"c.conv.weight": weight, "c.conv.bias": bias}), plan, "c", (4, 3, 7), dilation=dilation)

    expected = F.conv1d(F.pad(x, (6 * dilation, 0)), weight, bias, dilation=dilation)

    torch.testing.assert_close(run(layer, plan, x, [30]), expected)
    torch.testing.assert_close(run(layer, plan, x, [1] * 30), expected)


def test_snake_adds_a_squared_sine() -> None:
    alpha, beta, x = torch.randn(4), torch.randn(4), torch.randn(2, 4, 5)

    found = SnakeBeta(Given({"s.alpha": alpha, "s.beta": beta}), "s", 4)(x)

    torch.testing.assert_close(found, x + torch.sin(x * alpha.exp()[:, None]) ** 2 / beta.exp()[:, None])
