"""The codec decoder's transformer: a few layers at the rate of frames, each frame looking at a window of earlier ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from omni_core.modelkit.weights import TensorReader
from omni_models_qwen.qwen3_tts.codec_config import CodecDecoderConfig
from omni_models_qwen.qwen3_tts.codec_convolutions import Layer
from omni_models_qwen.qwen3_tts.codec_flow import Flow, MemoryPlan


class WindowTransformer(Layer):
    """From latent vectors to latent vectors, through layers of another width."""

    def __init__(self, reader: TensorReader, plan: MemoryPlan, config: CodecDecoderConfig) -> None:
        name, latent, hidden = "pre_transformer", config.latent_dim, config.hidden_size
        self.in_weight = reader.take(f"{name}.input_proj.weight", hidden, latent)
        self.in_bias = reader.take(f"{name}.input_proj.bias", hidden)
        self.layers = [_Layer(reader, plan, f"{name}.layers.{index}", config) for index in range(config.num_hidden_layers)]
        norm = reader.take(f"{name}.norm.weight", hidden)
        self.out_weight = reader.take(f"{name}.output_proj.weight", latent, hidden) * norm
        self.out_bias = reader.take(f"{name}.output_proj.bias", latent)
        self._window = config.sliding_window
        self._eps = config.rms_norm_eps
        self._head_dim = config.head_dim
        self._theta = config.rope_theta

    def __call__(self, x: Tensor, flow: Flow) -> Tensor:
        """Return [batch, latent_dim, frames] for the same shape."""
        x = F.linear(x.transpose(1, 2), self.in_weight, self.in_bias)
        seen = torch.tensor(flow.frames, device=x.device)
        mask = self._mask(seen, x.shape[1])
        rotation = self._rotation(seen, x.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, flow, mask, rotation)
        return F.linear(_normalized(x, self._eps), self.out_weight, self.out_bias).transpose(1, 2)

    def _mask(self, seen: Tensor, frames: int) -> Tensor:
        """Return which keys each query may use: [batch, 1, frames, window - 1 + frames].

        Key column c of `window - 1 + frames` is for the frame `c - (window - 1)` columns after the chunk's first one.
        """
        past = self._window - 1
        query = torch.arange(frames, device=seen.device)[:, None]
        key = torch.arange(past + frames, device=seen.device)
        band = (key >= query) & (key <= query + past)
        real = key >= past - seen[:, None]
        return (band & real[:, None, :])[:, None]

    def _rotation(self, seen: Tensor, frames: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [batch, 1, frames, head_dim] of the rotary position embedding."""
        steps = torch.arange(0, self._head_dim, 2, device=seen.device, dtype=torch.float32) / self._head_dim
        positions = (seen[:, None] + torch.arange(frames, device=seen.device)).to(torch.float32)
        angles = positions[..., None] * (1.0 / self._theta**steps)
        angles = torch.cat((angles, angles), -1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


class _Layer(Layer):
    """Attention and a gated network; norm weights and layer scales are folded into the products around them."""

    def __init__(self, reader: TensorReader, plan: MemoryPlan, name: str, config: CodecDecoderConfig) -> None:
        width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, head
        self.eps = config.rms_norm_eps
        before = reader.take(f"{name}.input_layernorm.weight", width)
        after = reader.take(f"{name}.post_attention_layernorm.weight", width)
        qkv = (
            reader.take(f"{name}.self_attn.{part}_proj.weight", count * head, width)
            for part, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        self.qkv = torch.cat(tuple(qkv)) * before
        scale = reader.take(f"{name}.self_attn_layer_scale.scale", width)
        self.out = reader.take(f"{name}.self_attn.o_proj.weight", width, self.heads * head) * scale[:, None]
        gate_up = tuple(reader.take(f"{name}.mlp.{part}_proj.weight", inner, width) for part in ("gate", "up"))
        self.gate_up = torch.cat(gate_up) * after
        scale = reader.take(f"{name}.mlp_layer_scale.scale", width)
        self.down = reader.take(f"{name}.mlp.down_proj.weight", width, inner) * scale[:, None]
        self.slot = plan.reserve(2, self.kv_heads, config.sliding_window - 1, head)

    def __call__(self, x: Tensor, flow: Flow, mask: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, frames, _ = x.shape
        qkv = F.linear(_normalized(x, self.eps), self.qkv).reshape(batch, frames, -1, self.head_dim).transpose(1, 2)
        query, key, value = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        query, key = _rotated(query, rotation), _rotated(key, rotation)
        keys, values = flow.extend(self.slot, torch.stack((key, value), dim=1), dim=-2).unbind(1)
        grouped = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)
        x = x + F.linear(y.transpose(1, 2).reshape(batch, frames, -1), self.out)
        gate, up = F.linear(_normalized(x, self.eps), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


def _normalized(x: Tensor, eps: float) -> Tensor:
    """Return `x` divided by its root mean square; the norm's weight is in the product that follows."""
    return F.rms_norm(x, x.shape[-1:], eps=eps)


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), -1) * sin
