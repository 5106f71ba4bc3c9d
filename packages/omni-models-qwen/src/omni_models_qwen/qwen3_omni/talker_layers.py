"""The talker's backbone: vLLM's decoder with experts, positions in three dimensions, and a shared expert in every layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.fused_moe import FusedMoEFactory, GateLinear
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.models.qwen3_moe import Qwen3MoeAttention, Qwen3MoeDecoderLayer, Qwen3MoeMLP, Qwen3MoeModel
from vllm.platforms import current_platform

_CPU_MULTIPLE = 32
"""vLLM's kernel for experts on CPUs takes no other widths."""


class _FilledExperts(RoutedExperts):
    """Experts whose rows are wider than the checkpoint's: what is filled up is zero and adds nothing."""

    def weight_loader(self, param: Any, loaded_weight: Tensor, weight_name: str, shard_id: str, *args: Any, **more: Any) -> Any:
        """Load one expert's matrix, filled up."""
        missing = self.hidden_size - loaded_weight.shape[0 if shard_id == "w2" else 1]
        filled = F.pad(loaded_weight, (0, 0, 0, missing) if shard_id == "w2" else (0, missing))
        return super().weight_loader(param, filled, weight_name, shard_id, *args, **more)


class TalkerExperts(nn.Module):
    """The feed-forward part of a layer: some experts of many by softmax, and one that every row reads, gated by a sigmoid."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        config, quant_config = vllm_config.model_config.hf_text_config, vllm_config.quant_config
        hidden = config.hidden_size
        self.gate = GateLinear(hidden, config.num_experts, quant_config=quant_config, prefix=f"{prefix}.gate")
        self.shared_expert_gate = ReplicatedLinear(
            hidden, 1, bias=False, quant_config=None, prefix=f"{prefix}.shared_expert_gate"
        )
        self.shared_expert = Qwen3MoeMLP(
            hidden_size=hidden,
            intermediate_size=config.shared_expert_intermediate_size,
            hidden_act=config.hidden_act,
            quant_config=quant_config,
            reduce_results=False,
            expert_gate=self.shared_expert_gate,
            prefix=f"{prefix}.shared_expert",
        )
        width = -(-hidden // _CPU_MULTIPLE) * _CPU_MULTIPLE if current_platform.is_cpu() else hidden
        # The gate is not handed over: it would be given rows that are filled up to `width`.
        self.experts = FusedMoEFactory(
            shared_experts=self.shared_expert,
            num_experts=config.num_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=width,
            intermediate_size=config.moe_intermediate_size,
            renormalize=config.norm_topk_prob,
            quant_config=quant_config,
            prefix=f"{prefix}.experts",
            routed_experts_cls=_FilledExperts if width != hidden else None,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return rows [T, H] for rows [T, H]."""
        scores, _ = self.gate(x)
        out: Tensor = self.experts(hidden_states=x, router_logits=scores)
        return out


class TalkerLayer(Qwen3MoeDecoderLayer):
    """vLLM's layer with this model's experts."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)
        config = vllm_config.model_config.hf_text_config
        self.hidden_size = config.hidden_size
        self.self_attn = Qwen3MoeAttention(
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            rope_parameters=config.rope_parameters,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            qkv_bias=config.attention_bias,
            head_dim=config.head_dim,
            cache_config=vllm_config.cache_config,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.self_attn",
        )
        self.mlp = TalkerExperts(vllm_config, f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0})
class TalkerBackbone(Qwen3MoeModel):
    """vLLM's decoder, made of `TalkerLayer`."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        text: Any = vllm_config.model_config.hf_text_config
        # The talker's rotary sections are always interleaved; vLLM looks for the name that the thinker's have.
        text.rope_parameters = {**text.rope_parameters, "mrope_interleaved": True}
        super().__init__(vllm_config=vllm_config, prefix=prefix, decoder_layer_type=TalkerLayer)
