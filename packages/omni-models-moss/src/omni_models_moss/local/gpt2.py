"""A GPT-2 with rotary positions on vLLM's layers: the large transformer of MOSS-TTS Nano. Engine core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.utils import make_empty_intermediate_tensors_factory

from omni_models_moss.local.local_transformer import ACTIVATIONS, LocalConfig

LAYER = tuple(
    f"{part}.{kind}"
    for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.fc_in", "mlp.fc_out")
    for kind in ("weight", "bias")
)
"""Tensors of a layer, by their names in the checkpoint and here."""


def tensor_names(theirs: str, ours: str, layers: int) -> dict[str, str]:
    """Return the names of all tensors: under `theirs` in the checkpoint, under `ours` in the model."""
    parts = [f"h.{index}.{part}" for index in range(layers) for part in LAYER]
    return {f"{theirs}.{part}": f"{ours}.{part}" for part in (*parts, "ln_f.weight", "ln_f.bias", "wte.weight")}


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "intermediate_tensors": 0, "inputs_embeds": 0})
class RotaryGPT2(nn.Module):
    """A decoder whose neighbours in a head are rotated in pairs.

    Args:
        vllm_config: Its `get_text_config()` has the sizes.
        prefix: Of the layers' names.
        local: Sizes of the small transformer, whose blocks are like those of this one.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", local: LocalConfig) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config.get_text_config()
        self.wte = VocabParallelEmbedding(config.vocab_size, config.hidden_size, prefix=f"{prefix}.wte")
        self.h = nn.ModuleList(
            _Block(config, local, vllm_config.cache_config, f"{prefix}.h.{index}") for index in range(config.num_hidden_layers)
        )
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=local.eps)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(["hidden_states"], config.hidden_size)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of ids."""
        embeds: Tensor = self.wte(input_ids)
        return embeds

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Return the normed hidden states [T, H]."""
        hidden = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds  # type: ignore[arg-type]
        for block in self.h:
            hidden = block(positions, hidden)
        normed: Tensor = self.ln_f(hidden)
        return normed

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load tensors by the names of the parameters."""
        parameters, loaded = dict(self.named_parameters()), set()
        for name, tensor in weights:
            loader = getattr(parameters[name], "weight_loader", default_weight_loader)
            loader(parameters[name], tensor)
            loaded.add(name)
        return loaded


class _Block(nn.Module):
    def __init__(self, config: Any, local: LocalConfig, cache: CacheConfig | None, prefix: str) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.n_inner or 4 * config.hidden_size
        self.activation = ACTIVATIONS[local.activation]
        self.ln_1 = nn.LayerNorm(width, eps=local.eps)
        self.attn = _Attention(config, local, cache, f"{prefix}.attn")
        self.ln_2 = nn.LayerNorm(width, eps=local.eps)
        self.mlp = nn.ModuleDict(
            {
                "fc_in": ColumnParallelLinear(width, inner, prefix=f"{prefix}.mlp.fc_in"),
                "fc_out": RowParallelLinear(inner, width, prefix=f"{prefix}.mlp.fc_out"),
            }
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        x = x + self.attn(positions, self.ln_1(x))
        inner, _ = self.mlp["fc_in"](self.ln_2(x))
        out, _ = self.mlp["fc_out"](self.activation(inner))
        return x + out


class _Attention(nn.Module):
    def __init__(self, config: Any, local: LocalConfig, cache: CacheConfig | None, prefix: str) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        head = width // heads
        self.c_attn = QKVParallelLinear(width, head, heads, bias=True, prefix=f"{prefix}.c_attn")
        self.c_proj = RowParallelLinear(width, width, bias=True, prefix=f"{prefix}.c_proj")
        self.rotary = get_rope(
            head,
            max_position=config.max_position_embeddings,
            is_neox_style=False,
            rope_parameters={"rope_type": "default", "rope_theta": local.rope_base},
        )
        own = heads // get_tensor_model_parallel_world_size()
        self.attn = Attention(own, head, head**-0.5, cache_config=cache, prefix=f"{prefix}.attn")

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        qkv, _ = self.c_attn(x)
        q, k, v = qkv.chunk(3, dim=-1)
        q, k = self.rotary(positions, q.contiguous(), k.contiguous())
        out: Tensor
        out, _ = self.c_proj(self.attn(q, k, v.contiguous()))
        return out
