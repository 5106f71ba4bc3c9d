"""Fields of a stage that denoises: what `StageDeployConfig` accepts for stages of the type DIFFUSION."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


class DiffusionFields(BaseModel):
    """Fields that only stages of the type DIFFUSION own."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
    )

    model_class_name: str | None = None
    """Class of the diffusion pipeline."""
    diffusion_load_format: Literal["default", "custom_pipeline", "dummy", "diffusers"] | None = None
    """How the diffusion pipeline is built."""
    diffusers_load_kwargs: dict[str, Any] | None = None
    """Options of the diffusers adapter's load."""
    diffusers_call_kwargs: dict[str, Any] | None = None
    """Options of the diffusers adapter's call."""
    ulysses_degree: Positive | None = None
    """Degree of Ulysses sequence parallelism."""
    ring_degree: Positive | None = None
    """Degree of ring sequence parallelism."""
    allgather_degree: Positive | None = None
    """Degree of all-gather sequence parallelism; excludes the two others."""
    sequence_parallel_size: Positive | None = None
    """Ranks of sequence parallelism in all."""
    cfg_parallel_size: Positive | None = None
    """Guidance passes that run in parallel."""
    vae_patch_parallel_size: Positive | None = None
    """Ranks among which VAE decoding is split."""
    text_encoder_tp_size: Positive | None = None
    """Tensor-parallel ranks of the text encoder."""
    ulysses_mode: Literal["strict", "advanced_uaa"] | None = None
    """Whether sequence lengths must be divisible."""
    ulysses_a2a_permute: bool | None = None
    """Use the fused all-to-all without permutation."""
    vae_parallel_mode: Literal["tile", "spatial_shard_height", "spatial_shard_width"] | None = None
    """How VAE decoding is split."""
    use_hsdp: bool | None = None
    """Shard the weights among devices."""
    hsdp_shard_size: Annotated[int | None, Field(ge=-1)] = None
    """Devices in a shard group; -1 chooses."""
    hsdp_replicate_size: Positive | None = None
    """Replica groups of sharded weights."""
    lora_path: str | list[str] | None = None
    """LoRA files that are loaded at start."""
    lora_backend: Literal["peft", "distill"] | None = None
    """Keep adapters apart, or fuse them at start."""
    lora_scale: float | None = None
    """Scale of the adapter."""
    diffusion_quantization_config: str | None = None
    """Quantization of the diffusion model; excludes `quantization`."""
    diffusion_attention_backend: str | None = None
    """Deprecated shorthand for `diffusion_attention_config.default`."""
    diffusion_attention_config: dict[str, Any] | None = None
    """Attention backends, by default and by role."""
    fastvideo_vsa_topk: Positive | None = None
    """Key and value blocks for each query block, with FASTVIDEO_VSA."""
    diffusion_compile_granularity: Literal["regional", "full"] | None = None
    """Compile repeated blocks or the whole transformer."""
    diffusion_compile_dynamic: bool | None = None
    """Compile for changing shapes."""
    fa_deterministic: bool | None = None
    """Use the deterministic path of FlashAttention."""
    cache_backend: Literal["none", "tea_cache", "cache_dit", "mag_cache", "sea_cache", "step_cache"] | None = None
    """Cache between denoising steps."""
    cache_config: dict[str, Any] | None = None
    """Options of that cache."""
    video_output_transport: dict[str, Any] | None = None
    """How video output is prepared."""
    enable_cache_dit_summary: bool | None = None
    """Log a summary of cache-dit."""
    step_execution: bool | None = None
    """Run step by step, so that aborts land between steps."""
    vae_use_slicing: bool | None = None
    """Decode one image of a batch at a time."""
    vae_use_tiling: bool | None = None
    """Decode in tiles."""
    vae_fast_path: Literal["off", "lossless", "channels_last"] | None = None
    """Fused kernels of the VAE decoder."""
    boundary_ratio: float | None = None
    """Where a two-expert video model changes its expert."""
    flow_shift: float | None = None
    """Shift of the scheduler."""
    diffusion_kv_cache_dtype: str | None = None
    """Precision of queries, keys and values."""
    diffusion_kv_cache_skip_steps: str | None = None
    """Steps without that precision, such as `0-9,20`."""
    diffusion_kv_cache_skip_layers: str | None = None
    """Layers without that precision, such as `0-9,20`."""
    auxiliary_text_encoder: str | None = None
    """Folder of a further text encoder."""
    enable_multithread_weight_load: bool | None = None
    """Load weights in several threads."""
    enable_broadcast_weight_load: bool | None = None
    """Load weights on rank 0 and broadcast them."""
    num_weight_load_threads: Positive | None = None
    """Threads that load weights."""
    diffusion_offload_config: dict[str, Any] | None = None
    """What is kept in the host's memory."""
    enable_cpu_offload: bool | None = None
    """Deprecated: see `diffusion_offload_config`."""
    enable_layerwise_offload: bool | None = None
    """Deprecated: see `diffusion_offload_config`."""
    enable_distributed_layerwise_offload: bool | None = None
    """Deprecated: see `diffusion_offload_config`."""
    dlo_use_allgather: bool | None = None
    """Deprecated: see `diffusion_offload_config`."""
    dlo_resident_layers: Annotated[int | None, Field(ge=0)] = None
    """Deprecated: see `diffusion_offload_config`."""
    dlo_host_registration_limit_gib: Annotated[float | None, Field(ge=0)] = None
    """Most GiB of registered host memory for each worker; 0 sets no limit."""
    host_weight_runtime_mode: Literal["disabled", "preferred", "required"] | None = None
    """Whether weights come from a store on the host."""
    host_weight_runtime_root: str | None = None
    """Folder of that store."""
    enable_diffusion_pipeline_profiler: bool | None = None
    """Measure the parts of the diffusion pipeline."""
    max_generated_image_size: Positive | None = None
    """Most pixels of an image that a request may ask for."""


SHARED_WITH_DIFFUSION = frozenset(
    {
        "tensor_parallel_size",
        "enable_expert_parallel",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "enforce_eager",
        "compilation_config",
        "profiler_config",
        "config_format",
        "load_format",
        "tokenizer_mode",
        "moe_backend",
        "linear_backend",
        "max_cpu_loras",
        "additional_config",
        "trust_remote_code",
        "distributed_executor_backend",
        "dtype",
        "quantization",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "data_parallel_size",
        "pipeline_parallel_size",
        "weight_transfer_config",
    }
)
"""Names of vLLM's engine that stages of the type DIFFUSION own too."""
