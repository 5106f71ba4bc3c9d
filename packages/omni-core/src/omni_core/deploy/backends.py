"""Backends of attention, mixtures of experts and linear layers: their names, and what a stage's fields come to (BK-01..07).

The tables hold vLLM's names (0.32) without importing vLLM; a contract test compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from omni_core.deploy.outcome import Outcome, place_of, stage_name
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import Source
from omni_core.suggest import did_you_mean

_MOE = """
    auto triton batched_triton deep_gemm deep_gemm_mega_moe cutlass flashinfer_trtllm flashinfer_cutlass
    flashinfer_cutedsl flashinfer_moe_ep_cutedsl flashinfer_b12x b12x flashinfer_moe_ep_mega_deep_gemm marlin humming
    triton_unfused aiter aiter_mega_moe aiter_triton_mxfp4_bf16 flydsl hpc emulation rdna3
"""
_LINEAR = """
    auto cutlass flashinfer_cutlass flashinfer_cutedsl flashinfer_trtllm flashinfer_cudnn flashinfer_b12x b12x marlin
    humming triton deep_gemm torch aiter machete fbgemm conch exllama emulation xpu xpu_woq
"""
_ATTENTION = """
    FLASH_ATTN FLASH_ATTN_DIFFKV TRITON_ATTN TRITON_ATTN_DIFFKV TRITON_FLASH_ATTN ROCM_ATTN ROCM_SEGMENTED_ATTN
    ROCM_AITER_MLA ROCM_AITER_TRITON_MLA ROCM_AITER_FA ROCM_AITER_MLA_SPARSE XPU_MLA_SPARSE TORCH_SDPA FLASHINFER
    TRITON_FLASHINFER FLASHINFER_MLA TOKENSPEED_MLA FLASHINFER_MLA_SPARSE FLASHINFER_MLA_SPARSE_SM120
    FLASHINFER_MLA_SPARSE_SM90 TRITON_MLA CUTLASS_MLA FLASHMLA FLASHMLA_SPARSE FLASHMLA_SPARSE_DSV4
    FLASHINFER_MLA_SPARSE_DSV4 ROCM_FLASHMLA_SPARSE_DSV4 FLASHMLA_SPARSE_DSV41 FLASHINFER_MLA_SPARSE_DSV41
    FLASHMLA_MEGA_ATTN_DSV41 B12X FLASH_ATTN_MLA FLASH_ATTN_MLA_SPARSE MINIMAX_M3_SPARSE CUTLASS_MSA TRITON_MSA
    NO_ATTENTION FLEX_ATTENTION HPC_ATTN ROCM_AITER_UNIFIED_ATTN CPU_ATTN CPU_MLA AMX_MLA TURBOQUANT ULTRAQUANT CUSTOM
"""

MOE_BACKENDS = tuple(_MOE.split())
"""Values of `moe_backend`: vLLM's `KernelConfig.moe_backend`."""

LINEAR_BACKENDS = tuple(_LINEAR.split())
"""Values of `linear_backend`: vLLM's `KernelConfig.linear_backend`."""

ATTENTION_BACKENDS = tuple(_ATTENTION.split())
"""Values of an AR stage's `attention_backend` besides `auto`: vLLM's `AttentionBackendEnum`."""

_KERNELS = {"moe_backend": MOE_BACKENDS, "linear_backend": LINEAR_BACKENDS}
_NESTED = {
    "attention_backend": ("attention_config", "backend"),
    "moe_backend": ("kernel_config", "moe_backend"),
    "linear_backend": ("kernel_config", "linear_backend"),
}


def check_backends(
    stage: StagePipelineConfig,
    arguments: Mapping[str, Any],
    sources: Mapping[str, Source],
    *,
    environ: Mapping[str, str] | None = None,
) -> Outcome:
    """Check a stage's backends and return their normalised names.

    An omitted backend stays omitted: the model's or the engine's own choice is left in force. An explicit `auto` is kept, since
    it suppresses the model's choice (BK-03).

    Args:
        stage: The topology.
        arguments: The stage's engine arguments, `engine_extras` folded in.
        sources: Where they came from.
        environ: What the stage's processes will see of the environment; only DIFFUSION_ATTENTION_BACKEND is read.

    Raises:
        ConfigError: A backend does not exist, or belongs to another type of stage (E26).
    """
    changed: dict[str, Any] = {}
    for field, choices in _KERNELS.items():
        if (value := arguments.get(field)) is not None:
            name = str(value).lower().replace("-", "_")
            changed[field] = _choice(stage, field, value, name, choices, sources)
    if stage.execution_type is ExecutionType.DIFFUSION:
        _refuse_vllm_attention(stage, arguments, sources)
        # Its models take a tenth of the time of a cold start, and most pipelines have no such stage.
        from omni_core.deploy.diffusion_attention import resolve_diffusion_attention

        attention = resolve_diffusion_attention(stage, arguments, sources, environ=environ or {})
        changed.update(attention.arguments)
        return replace(attention, arguments=changed)
    if (value := arguments.get("attention_backend")) is not None:
        name = "auto" if str(value).lower() == "auto" else str(value).upper()
        changed["attention_backend"] = _choice(stage, "attention_backend", value, name, ("auto", *ATTENTION_BACKENDS), sources)
    nested, warnings = _drop_nested(stage, {**arguments, **changed}, sources)
    return Outcome({**changed, **nested}, warnings=warnings)


def _choice(
    stage: StagePipelineConfig, field: str, value: Any, name: str, choices: Collection[str], sources: Mapping[str, Source]
) -> str:
    if name in choices:
        return name
    parts = [
        did_you_mean(name, choices),
        f"the choices are {', '.join(choices)}",
        "one that a plugin of vLLM registers goes to attention_config: {backend: NAME}" if field == "attention_backend" else "",
    ]
    raise ConfigError(
        f"{stage_name(stage)}: there is no {field} {value!r}",
        where=place_of(sources, field),
        hint="; ".join(filter(None, parts)),
        param=field,
    )


def _refuse_vllm_attention(stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
    """Refuse the attention backend of vLLM's engine on a stage that denoises (BK-01)."""
    if (value := arguments.get("attention_backend")) is not None:
        raise ConfigError(
            f"{stage_name(stage)} denoises and has no attention_backend",
            where=place_of(sources, "attention_backend"),
            hint=f"set diffusion_attention_config: {{default: {value}}}",
            param="attention_backend",
        )


def _drop_nested(
    stage: StagePipelineConfig, arguments: Mapping[str, Any], sources: Mapping[str, Source]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return vLLM's nested configurations without what a field of the stage sets too; the field wins (BK-07)."""
    changed: dict[str, Any] = {}
    warnings: list[str] = []
    for field, (group, key) in _NESTED.items():
        own = arguments.get(field)
        inside = changed.get(group, arguments.get(group))
        if own is None or not isinstance(inside, Mapping) or inside.get(key) is None:
            continue
        changed[group] = {name: value for name, value in inside.items() if name != key} or None
        if str(inside[key]).lower() != str(own).lower():
            warnings.append(
                f"{place_of(sources, group, key)}: {stage_name(stage)}: {group}.{key} {inside[key]!r} is ignored, "
                f"{field} {own!r} ({place_of(sources, field)}) sets it"
            )
    return changed, tuple(warnings)
