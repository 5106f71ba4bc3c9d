"""A code predictor: from a talker's hidden state and the first code to the other codes of the frame, one after another.

A small decoder of its own that reads as many rows as a frame has codes and forgets them after it. It is plain torch, with one
operation of vLLM's: its attention lives outside vLLM's paged cache and forward context, and all frames of a batch are predicted
in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from omni_core.capabilities import MtpSampling
from omni_core.engine.vllm_bridge import custom_ops
from omni_core.modelkit.code_sampling import LastSampling
from omni_core.modelkit.config_reader import ConfigReader


@dataclass(frozen=True)
class PredictorConfig:
    """Sizes of the predictor."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    steps: int
    """Codes it predicts: those of a frame without the first."""
    talker_hidden: int
    eps: float = 1e-6
    rope_theta: float = 1e6
    choices: int | None = None
    """Codes from this one on are never chosen; None where all may be."""

    @classmethod
    def read(
        cls,
        section: ConfigReader,
        *,
        codes: int,
        talker_hidden: int,
        vocab_size: int | None = None,
        choices: int | None = None,
    ) -> PredictorConfig:
        """Return the sizes in a predictor's part of a config.json, by the names that transformers uses.

        Args:
            section: That part.
            codes: Codes of a frame.
            talker_hidden: Width of the talker's rows.
            vocab_size: Size of the codebooks; None where it is among the sizes.
            choices: See the field.

        Raises:
            ConfigError: A size is missing or no positive number.
        """
        hidden, heads = section.count("hidden_size"), section.count("num_attention_heads")
        rope = section.section("rope_parameters") if section.raw.get("rope_parameters") else section
        return cls(
            hidden=hidden,
            intermediate=section.count("intermediate_size"),
            layers=section.count("num_hidden_layers"),
            heads=heads,
            kv_heads=section.count("num_key_value_heads"),
            head_dim=section.count("head_dim", hidden // heads),
            vocab_size=section.count("vocab_size") if vocab_size is None else vocab_size,
            steps=codes - 1,
            talker_hidden=talker_hidden,
            eps=section.positive("rms_norm_eps", 1e-6),
            rope_theta=rope.positive("rope_theta", 1e6),
            choices=choices,
        )


class CodePredictor(nn.Module):
    """Predict the codes of frames and embed them."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        rows = config.steps * config.vocab_size
        # All tables in one, so that a frame is one look-up; the last row stands for "no code" and stays zero.
        self.codec_embedding = _weight(rows + 1, config.talker_hidden)
        self.lm_head = _weight(config.steps, config.vocab_size, config.hidden)
        # Models whose talker is as wide as the predictor (0.6B) have no projection.
        self.projects = config.talker_hidden != config.hidden
        if self.projects:
            self.projection_weight = _weight(config.hidden, config.talker_hidden)
            self.projection_bias = _weight(config.hidden)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = _weight(config.hidden)
        cos, sin = _rotary_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        offsets = torch.arange(config.steps, dtype=torch.int64) * config.vocab_size
        self.register_buffer("offsets", offsets, persistent=False)
        self._sampling = LastSampling(config.choices or config.vocab_size)

    def checkpoint_views(
        self, embedding: str = "model.codec_embedding", head: str = "lm_head", first: int = 0
    ) -> dict[str, Tensor]:
        """Return where each tensor of the checkpoint goes, by its name inside the predictor.

        Args:
            embedding: What the tables are called there.
            head: What the heads are called there.
            first: The number that code 1's table and head have there.
        """
        size = self.config.vocab_size
        views = {"model.norm.weight": self.norm.data}
        for step in range(self.config.steps):
            views[f"{embedding}.{first + step}.weight"] = self.codec_embedding.data[step * size : (step + 1) * size]
            views[f"{head}.{first + step}.weight"] = self.lm_head.data[step]
        if self.projects:
            views["small_to_mtp_projection.weight"] = self.projection_weight.data
            views["small_to_mtp_projection.bias"] = self.projection_bias.data
        for index, layer in enumerate(self.layers):
            views |= {f"model.layers.{index}.{name}": view for name, view in layer.checkpoint_views().items()}
        return views

    def finish_loading(self) -> None:
        """Write what follows from the loaded tensors: the zero row of the table, and joined norms."""
        self.codec_embedding.data[-1].zero_()
        for layer in self.layers:
            layer.join_norms()

    def embed(self, codes: Tensor) -> Tensor:
        """Return the summed embeddings of codes 1 to Q-1 of frames; negative codes add nothing.

        Args:
            codes: int [B, Q-1].

        Returns:
            [B, talker hidden].
        """
        none = self.codec_embedding.shape[0] - 1
        rows = torch.where(codes < 0, none, codes + self.offsets)
        return F.embedding(rows, self.codec_embedding).sum(-2)

    def forward(
        self,
        hidden: Tensor,
        first: Tensor,
        sampling: Sequence[MtpSampling],
        uniforms: Tensor | None,
        seen: Tensor | None = None,
    ) -> Tensor:
        """Return codes 1 to Q-1 of each frame.

        Args:
            hidden: The talker's hidden states, normed [B, talker hidden].
            first: Embeddings of the codes 0 [B, talker hidden].
            sampling: How each row chooses.
            uniforms: Random numbers [B, Q-1, choices]; see `CodeSampling.choose`.
            seen: bool [B, Q-1, choices], the codes that a repetition penalty lowers.

        Returns:
            int64 [B, Q-1].
        """
        config = self.config
        settings = self._sampling.of(sampling, hidden.device)
        caches = self._new_caches(hidden)
        rows, start, codes = torch.stack([hidden, first], dim=1), 0, []
        for step in range(config.steps):
            state = self._run(rows, start, caches)
            logits = F.linear(state, self.lm_head[step, : config.choices])
            drawn = None if uniforms is None else uniforms[:, step]
            code = settings.choose(logits, drawn, None if seen is None else seen[:, step])
            codes.append(code)
            start += rows.shape[1]
            rows = F.embedding(code + self.offsets[step], self.codec_embedding)[:, None]
        return torch.stack(codes, dim=1)

    def begin(self, hidden: Tensor) -> Tensor:
        """Return the state [B, hidden] that code 0 is chosen from, for models where the predictor does that too."""
        return self._run(hidden[:, None], 0, self._new_caches(hidden))

    def _new_caches(self, hidden: Tensor) -> list[tuple[Tensor, Tensor]]:
        config = self.config
        shape = (config.layers, 2, hidden.shape[0], config.kv_heads, config.steps + 1, config.head_dim)
        cache = torch.empty(shape, dtype=hidden.dtype, device=hidden.device)
        return [(layer[0], layer[1]) for layer in cache]

    def _run(self, rows: Tensor, start: int, caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the last row's state [B, hidden] after reading `rows` [B, n, talker hidden] at positions from `start`."""
        config = self.config
        x = F.linear(rows, self.projection_weight, self.projection_bias) if self.projects else rows
        end = start + rows.shape[1]
        cos, sin = self.cos[start:end], self.sin[start:end]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cos, sin, cache, start)
        return _rms_norm(x[:, -1].contiguous(), self.norm, config.eps)


class _Layer(nn.Module):
    """One decoder layer; query, key and value, and gate and up, are one matrix each."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.q, self.kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.qkv = _weight(self.q + 2 * self.kv, config.hidden)
        self.out = _weight(config.hidden, self.q)
        self.gate_up = _weight(2 * config.intermediate, config.hidden)
        self.down = _weight(config.hidden, config.intermediate)
        self.input_norm = _weight(config.hidden)
        self.middle_norm = _weight(config.hidden)
        self.q_norm = _weight(config.head_dim)
        self.k_norm = _weight(config.head_dim)
        joined = torch.empty(config.heads + config.kv_heads, 1, config.head_dim)
        self.register_buffer("qk_norm", joined, persistent=False)
        self.register_buffer("unit", torch.empty(config.head_dim), persistent=False)

    def join_norms(self) -> None:
        """Write the norms of query and key heads as one, so that both are normed and rotated in one go."""
        self.unit.fill_(1)
        self.qk_norm[: self.config.heads] = self.q_norm
        self.qk_norm[self.config.heads :] = self.k_norm

    def checkpoint_views(self) -> dict[str, Tensor]:
        q, k, v = self.qkv.data.split([self.q, self.kv, self.kv])
        gate, up = self.gate_up.data.chunk(2)
        return {
            "self_attn.q_proj.weight": q,
            "self_attn.k_proj.weight": k,
            "self_attn.v_proj.weight": v,
            "self_attn.o_proj.weight": self.out.data,
            "self_attn.q_norm.weight": self.q_norm.data,
            "self_attn.k_norm.weight": self.k_norm.data,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": self.down.data,
            "input_layernorm.weight": self.input_norm.data,
            "post_attention_layernorm.weight": self.middle_norm.data,
        }

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], start: int) -> Tensor:
        eps = self.config.eps
        x = x + self._attend(_rms_norm(x, self.input_norm, eps), cos, sin, cache, start)
        gate, up = F.linear(_rms_norm(x, self.middle_norm, eps), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], start: int) -> Tensor:
        config, (batch, length, _) = self.config, x.shape
        qkv = F.linear(x, self.qkv).view(batch, length, -1, config.head_dim)
        # Values are normed, too, and not used: the norm wants its rows without gaps, and copying them costs more.
        qk = _rms_norm(qkv, self.unit, config.eps)[:, :, : -config.kv_heads].transpose(1, 2)
        q, k = _rotate(qk * self.qk_norm, cos, sin).split([config.heads, config.kv_heads], 1)
        keys, values = cache
        end = start + length
        keys[:, :, start:end], values[:, :, start:end] = k, qkv[:, :, -config.kv_heads :].transpose(1, 2)
        # More than one row comes only at the start, so the causal mask is square there and not needed later.
        seen = F.scaled_dot_product_attention(
            q, keys[:, :, :end], values[:, :, :end], is_causal=length > 1, enable_gqa=config.heads != config.kv_heads
        )
        return F.linear(seen.transpose(1, 2).reshape(batch, length, self.q), self.out)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return contiguous rows [..., n], normed, times a weight [n].

    Why: torch norms on a CPU by seven operations, a third of the predictor's time; vLLM has one.
    Why not elsewhere: the layer that vLLM has for it computes like torch on a CPU.
    Scope: this module, on CPUs.
    What would break it: a vLLM that does not build the operation for CPUs; the first frame would raise.
    How it can go away: a torch that has one operation for it on CPUs, as it has on GPUs.
    """
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    out = torch.empty_like(x)
    custom_ops.rms_norm(out, x, weight, eps)
    return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat([high, low], -1) * sin).to(x.dtype)


def _rotary_tables(config: PredictorConfig) -> tuple[Tensor, Tensor]:
    """Return cosines [positions, head_dim], and sines that are negative for the low half, in float32."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.arange(config.steps + 1, dtype=torch.float32)[:, None] * config.rope_theta**-half
    sin = angles.sin()
    return torch.cat([angles, angles], -1).cos(), torch.cat([-sin, sin], -1)


def _weight(*shape: int) -> nn.Parameter:
    """Return a parameter to be loaded: its values are undefined until then."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)
