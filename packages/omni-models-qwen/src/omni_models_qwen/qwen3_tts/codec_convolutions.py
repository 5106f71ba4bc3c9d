"""The codec decoder's causal convolutions: they look back only, so that chunks of any size give the one-shot result.

Each class takes its weights from a `TensorReader`, in float32, and folds what does not depend on the input.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from omni_core.modelkit.weights import TensorReader
from omni_models_qwen.qwen3_tts.codec_flow import Flow, MemoryPlan

DILATIONS = (1, 3, 9)


class Layer:
    """Something with tensors that move together."""

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the layer's tensors and those of the layers inside it."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device, dtype).contiguous())
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, Layer):
                    part.to(device, dtype)


class CausalConv(Layer):
    """A convolution whose output at a column depends on that column and `(kernel - 1) * dilation` earlier ones."""

    def __init__(
        self,
        reader: TensorReader,
        plan: MemoryPlan,
        name: str,
        sizes: tuple[int, int, int],
        *,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        inputs, outputs, kernel = sizes
        self.weight = reader.take(f"{name}.conv.weight", outputs, inputs // groups, kernel)
        self.bias = reader.take(f"{name}.conv.bias", outputs)
        self.dilation = dilation
        self.groups = groups
        self.reach = (kernel - 1) * dilation
        self.slot = plan.reserve(inputs, self.reach) if self.reach else None

    def __call__(self, x: Tensor, flow: Flow) -> Tensor:
        """Return [batch, outputs, columns] for [batch, inputs, columns]."""
        if self.slot is not None:
            x = flow.extend(self.slot, x, dim=-1)
        return F.conv1d(x, self.weight, self.bias, dilation=self.dilation, groups=self.groups)


class CausalUpsample(Layer):
    """A transposed convolution that makes exactly `stride` columns of each one: what it adds at the right is cut.

    Column `t * stride + p` of the result is the sum over j of weight[..., p + j * stride] at input column t - j. That is an
    ordinary convolution with `stride` times the outputs, which come out side by side and are then laid in a row.
    """

    def __init__(self, reader: TensorReader, plan: MemoryPlan, name: str, sizes: tuple[int, int, int], *, stride: int) -> None:
        inputs, outputs, kernel = sizes
        taps = kernel // stride
        assert kernel == taps * stride
        weight = reader.take(f"{name}.conv.weight", inputs, outputs, kernel).reshape(inputs, outputs, taps, stride)
        self.weight = weight.flip(2).permute(1, 3, 0, 2).reshape(outputs * stride, inputs, taps).contiguous()
        self.bias = reader.take(f"{name}.conv.bias", outputs).repeat_interleave(stride)
        self.stride = stride
        self.reach = taps - 1
        self.slot = plan.reserve(inputs, self.reach) if self.reach else None

    def __call__(self, x: Tensor, flow: Flow) -> Tensor:
        """Return [batch, outputs, columns * stride] for [batch, inputs, columns]."""
        batch, _, columns = x.shape
        if self.slot is not None:
            x = flow.extend(self.slot, x, dim=-1)
        y = F.conv1d(x, self.weight, self.bias)
        return y.reshape(batch, -1, self.stride, columns).transpose(2, 3).reshape(batch, -1, columns * self.stride)


class SnakeBeta(Layer):
    """The activation x + sin(x * e^alpha)^2 / e^beta, with alpha and beta for each channel."""

    def __init__(self, reader: TensorReader, name: str, channels: int) -> None:
        self.frequency = reader.take(f"{name}.alpha", channels).exp()[:, None]
        self.magnitude = (reader.take(f"{name}.beta", channels).exp() + 1e-9).reciprocal()[:, None]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the activation of [batch, channels, columns]."""
        return torch.addcmul(x, (x * self.frequency).sin_().square_(), self.magnitude)


class ConvNextBlock(Layer):
    """A depthwise convolution and a two-layer network for each column, added to the input."""

    def __init__(self, reader: TensorReader, plan: MemoryPlan, name: str, width: int) -> None:
        self.depthwise = CausalConv(reader, plan, f"{name}.dwconv", (width, width, 7), groups=width)
        norm_weight, norm_bias = reader.take(f"{name}.norm.weight", width), reader.take(f"{name}.norm.bias", width)
        up, up_bias = reader.take(f"{name}.pwconv1.weight", 4 * width, width), reader.take(f"{name}.pwconv1.bias", 4 * width)
        down, down_bias = reader.take(f"{name}.pwconv2.weight", width, 4 * width), reader.take(f"{name}.pwconv2.bias", width)
        gamma = reader.take(f"{name}.gamma", width)
        # The norm's scale and shift go into the first product, the block's scale into the second.
        self.up_weight, self.up_bias = up * norm_weight, up_bias + up @ norm_bias
        self.down_weight, self.down_bias = down * gamma[:, None], down_bias * gamma
        self.width = width

    def __call__(self, x: Tensor, flow: Flow) -> Tensor:
        """Return [batch, width, columns] for the same shape."""
        y = F.layer_norm(self.depthwise(x, flow).transpose(1, 2), (self.width,), eps=1e-6)
        y = F.linear(F.gelu(F.linear(y, self.up_weight, self.up_bias)), self.down_weight, self.down_bias)
        return x + y.transpose(1, 2)


class ResidualUnit(Layer):
    """A dilated and a pointwise convolution, each after an activation, added to the input."""

    def __init__(self, reader: TensorReader, plan: MemoryPlan, name: str, channels: int, dilation: int) -> None:
        self.act1 = SnakeBeta(reader, f"{name}.act1", channels)
        self.conv1 = CausalConv(reader, plan, f"{name}.conv1", (channels, channels, 7), dilation=dilation)
        self.act2 = SnakeBeta(reader, f"{name}.act2", channels)
        self.conv2 = CausalConv(reader, plan, f"{name}.conv2", (channels, channels, 1))

    def __call__(self, x: Tensor, flow: Flow) -> Tensor:
        """Return [batch, channels, columns] for the same shape."""
        return self.conv2(self.act2(self.conv1(self.act1(x), flow)), flow).add_(x)


class DecoderBlock(Layer):
    """One step up in rate: activation, upsampling by `stride` to half the channels, three residual units."""

    def __init__(self, reader: TensorReader, plan: MemoryPlan, name: str, channels: int, stride: int) -> None:
        out = channels // 2
        self.stride = stride
        self.act = SnakeBeta(reader, f"{name}.block.0", channels)
        self.upsample = CausalUpsample(reader, plan, f"{name}.block.1", (channels, out, 2 * stride), stride=stride)
        self.units = [
            ResidualUnit(reader, plan, f"{name}.block.{index}", out, dilation) for index, dilation in enumerate(DILATIONS, 2)
        ]

    def __call__(self, x: Tensor, flow: Flow) -> Tensor:
        """Return [batch, channels / 2, columns * stride] for [batch, channels, columns]."""
        x = self.upsample(self.act(x), flow)
        for unit in self.units:
            x = unit(x, flow)
        return x

    @property
    def reach(self) -> float:
        """How many input columns back the first output column of a chunk can see, at most."""
        return self.upsample.reach + sum(unit.conv1.reach for unit in self.units) / self.stride
