"""The talker's local transformer: from one hidden state to whether there is another frame, and to the frame's codes.

It reads the hidden state and then, one after another, the codes it has chosen, and forgets them after each frame. In Nano it
reads, before the codes, that there is another frame. It is plain torch: its attention lives outside vLLM's paged cache, and all
frames of a batch are predicted in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from omni_core.capabilities import MtpSampling
from omni_core.modelkit.code_sampling import LastSampling
from omni_core.modelkit.config_reader import ConfigReader
from omni_models_moss.local.checkpoint import Checkpoint
from omni_models_moss.tables import CodeTables


def _gelu_new(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu_new": _gelu_new}


@dataclass(frozen=True)
class LocalConfig:
    """Sizes of the local transformer."""

    hidden: int
    inner: int
    layers: int
    heads: int
    num_codes: int
    codebook_size: int
    activation: str = "silu"
    eps: float = 1e-6
    rope_base: float = 1e6
    reads_decision: bool = False

    @classmethod
    def read(cls, read: ConfigReader, facts: Checkpoint) -> LocalConfig:
        """Return the sizes in a checkpoint's `gpt2_config`.

        Raises:
            ConfigError: Something in it is missing, has another type or is not supported.
        """
        position = read.raw.get("position_embedding_type", "rope")
        activation = read.raw.get("activation_function", "gelu_new" if facts.is_gpt2 else "silu")
        for name, value, known in (
            ("position_embedding_type", position, ("rope",)),
            ("activation_function", activation, ACTIVATIONS),
        ):
            if value not in known:
                raise read.fault(f"{name} {value!r} is not supported", f"known are {', '.join(known)}")
        hidden, heads = read.count("n_embd"), read.count("n_head")
        if hidden % (2 * heads):
            raise read.fault(f"n_head {heads} does not share out {hidden} values in pairs")
        return cls(
            hidden=hidden,
            inner=read.count("n_inner", 4 * hidden),
            layers=facts.local_layers,
            heads=heads,
            num_codes=facts.num_codes,
            codebook_size=facts.codebook_size,
            activation=activation,
            eps=read.positive("layer_norm_epsilon", 1e-5 if facts.is_gpt2 else 1e-6),
            rope_base=read.positive("rope_base", 1e4 if facts.is_gpt2 else 1e6),
            reads_decision=facts.reads_decision,
        )

    @property
    def positions(self) -> int:
        """Rows that it reads for a frame."""
        return self.num_codes + self.reads_decision

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


class LocalTransformer(nn.Module):
    """Decide on frames, predict their codes and embed them. The codes' embeddings are also the heads that choose them."""

    def __init__(self, config: LocalConfig) -> None:
        super().__init__()
        self.config = config
        self.codes = CodeTables(config.num_codes, config.codebook_size, config.hidden)
        self.text_head = _weight(2, config.hidden)
        self.layers = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.hidden, eps=config.eps)
        cos, sin = _rotary_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._sampling = LastSampling(config.codebook_size)

    def checkpoint_views(self) -> dict[str, Tensor]:
        """Return where each tensor of the checkpoint goes, by its name."""
        views = self.codes.views("audio_embeddings.{}.weight")
        if not self.config.reads_decision:
            views["local_text_lm_head.weight"] = self.text_head.data
        views |= {f"local_transformer.ln_f.{name}": value.data for name, value in self.ln_f.named_parameters()}
        for index, layer in enumerate(self.layers):
            views |= {f"local_transformer.h.{index}.{name}": value.data for name, value in layer.named_parameters()}
        return views

    def finish_loading(self) -> None:
        """Write what no tensor brings."""
        self.codes.finish_loading()

    def decide(self, hidden: Tensor) -> Tensor:
        """Return the logits [B, 2] of another frame and of the end, for hidden states [B, hidden]."""
        return F.linear(self._run(hidden, 0, self._new_cache(hidden)), self.text_head)

    def forward(self, hidden: Tensor, sampling: Sequence[MtpSampling], uniforms: Tensor | None, seen: Tensor | None) -> Tensor:
        """Return the codes of each frame.

        Args:
            hidden: The talker's hidden states, normed [B, hidden].
            sampling: How each row chooses.
            uniforms: Random numbers [B, Q, codebook size]; see `CodeSampling.choose`.
            seen: bool [B, Q, codebook size], the codes that the rows' earlier frames had.

        Returns:
            int64 [B, Q].
        """
        settings = self._sampling.of(sampling, hidden.device)
        cache, row, codes, first = self._new_cache(hidden), hidden, [], 0
        if self.config.reads_decision:
            self._run(hidden, 0, cache)
            row, first = self.text_head[0].expand_as(hidden), 1
        for book in range(self.config.num_codes):
            table = self.codes.table(book)
            logits = F.linear(self._run(row, first + book, cache), table).float()
            drawn = None if uniforms is None else uniforms[:, book]
            codes.append(settings.choose(logits, drawn, None if seen is None else seen[:, book]))
            row = F.embedding(codes[-1], table)
        return torch.stack(codes, dim=1)

    def _new_cache(self, hidden: Tensor) -> Tensor:
        config = self.config
        shape = (config.layers, 2, hidden.shape[0], config.heads, config.positions, config.head_dim)
        return torch.empty(shape, dtype=hidden.dtype, device=hidden.device)

    def _run(self, row: Tensor, position: int, cache: Tensor) -> Tensor:
        """Return the state [B, hidden] after reading a row [B, hidden] at a position."""
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            row = layer(row, self.cos[position], self.sin[position], layer_cache, position)
        normed: Tensor = self.ln_f(row)
        return normed


class _Block(nn.Module):
    """One block: attention and a feed-forward part, each behind a norm. Names are the checkpoint's."""

    def __init__(self, config: LocalConfig) -> None:
        super().__init__()
        width, inner = config.hidden, config.inner
        self.heads, self.activation = config.heads, ACTIVATIONS[config.activation]
        self.ln_1 = nn.LayerNorm(width, eps=config.eps)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.ln_2 = nn.LayerNorm(width, eps=config.eps)
        self.mlp = nn.ModuleDict({"fc_in": nn.Linear(width, inner), "fc_out": nn.Linear(inner, width)})

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, position: int) -> Tensor:
        x = x + self._attend(self.ln_1(x), cos, sin, cache, position)
        return x + self.mlp["fc_out"](self.activation(self.mlp["fc_in"](self.ln_2(x))))

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, position: int) -> Tensor:
        batch, width = x.shape
        q, k, v = self.attn["c_attn"](x).view(batch, 3, self.heads, width // self.heads).unbind(1)
        cache[0, :, :, position], cache[1, :, :, position] = _rotate(k, cos, sin), v
        end = position + 1
        seen = F.scaled_dot_product_attention(_rotate(q, cos, sin)[:, :, None], cache[0, :, :, :end], cache[1, :, :, :end])
        return self.attn["c_proj"](seen.reshape(batch, width))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return [..., head width] rotated, neighbours in pairs."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2).to(x.dtype)


def _rotary_tables(config: LocalConfig) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [positions, head width / 2] in float32."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.arange(config.positions, dtype=torch.float32)[:, None] * config.rope_base**-steps
    return angles.cos(), angles.sin()


def _weight(*shape: int) -> nn.Parameter:
    """Return a parameter to be loaded: its values are undefined until then."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)
