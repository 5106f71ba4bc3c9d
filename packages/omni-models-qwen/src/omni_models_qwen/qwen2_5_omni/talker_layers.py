"""The talker's backbone: vLLM's Qwen2 decoder, with heads of a size of their own and a table as wide as the thinker."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.qwen2 import Qwen2Attention, Qwen2DecoderLayer, Qwen2MLP, Qwen2Model


class TalkerAttention(Qwen2Attention):
    """vLLM's attention, where the heads together are wider than the rows."""

    def __init__(self, config: Any, cache_config: CacheConfig | None, quant_config: Any, prefix: str) -> None:
        nn.Module.__init__(self)
        ranks = get_tensor_model_parallel_world_size()
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.num_heads, self.num_kv_heads = heads // ranks, max(1, kv_heads // ranks)
        self.q_size, self.kv_size = self.num_heads * size, self.num_kv_heads * size
        self.qk_norm = False
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size, size, heads, kv_heads, bias=True, quant_config=quant_config, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(
            heads * size, config.hidden_size, bias=False, quant_config=quant_config, prefix=f"{prefix}.o_proj"
        )
        self.rotary_emb = get_rope(size, max_position=config.max_position_embeddings, rope_parameters=config.rope_parameters)
        self.attn = Attention(
            self.num_heads,
            size,
            size**-0.5,
            num_kv_heads=self.num_kv_heads,
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
        )


class TalkerLayer(Qwen2DecoderLayer):
    """vLLM's layer with this model's attention."""

    def __init__(
        self, config: Any, cache_config: CacheConfig | None = None, quant_config: Any = None, prefix: str = ""
    ) -> None:
        nn.Module.__init__(self)
        self.hidden_size = config.hidden_size
        self.self_attn = TalkerAttention(config, cache_config, quant_config, f"{prefix}.self_attn")
        self.mlp = Qwen2MLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            quant_config=quant_config,
            prefix=f"{prefix}.mlp",
        )
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0})
class TalkerBackbone(Qwen2Model):
    """vLLM's decoder, made of `TalkerLayer`. Its table gives rows as wide as the thinker's, which are projected before it."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, decoder_layer_type=TalkerLayer)
        config = vllm_config.model_config.hf_text_config
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.embedding_size, prefix=f"{prefix}.embed_tokens")

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of codes, [T, W]."""
        rows: Tensor = self.embed_tokens(input_ids)
        return rows
