"""Names that vLLM's engine owns and what each of them takes, kept as data so that nothing here imports vLLM.

A contract test compares both tables with vLLM (0.32).
"""

from __future__ import annotations

from typing import Any

_KINDS = {
    "bool": """
        aggregate_engine_logging allow_deprecated_quantization async_scheduling cudagraph_metrics
        data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb dcp_q_replicate
        disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce disable_hybrid_kv_cache_manager
        disable_log_stats disable_nccl_for_dp_synchronization disable_sliding_window enable_batch_sharded_sampling
        enable_chunked_prefill enable_cumem_allocator enable_dbo enable_elastic_ep enable_ep_weight_filter enable_eplb
        enable_expert_parallel enable_fault_tolerance enable_flashinfer_autotune enable_hc_sp
        enable_layerwise_nvtx_tracing enable_log_requests enable_logging_iteration_details enable_lora
        enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint enable_mfu_metrics
        enable_mixed_moe_lora_format enable_mm_embeds enable_mm_processor_stats enable_moe_shared_loras
        enable_nccl_comm_suspend enable_prefix_caching enable_prompt_embeds enable_return_routed_experts
        enable_shm_tensor_arena enable_sleep_mode enable_tower_connector_lora enable_trace_replay enforce_eager
        fail_on_environ_validation fully_sharded_loras interleave_mm_strings jit_monitor_verbose kv_cache_metrics
        kv_sharing_fast_prefill language_model_only long_prefill_token_threshold_adaptive mm_device_do_normalize
        mm_encoder_only numa_bind ray_workers_use_nsight return_sampling_mask scheduler_reserve_full_isl
        skip_mm_profiling skip_tokenizer_init sleep_mode_offload_cudagraph specialize_active_lora swa_bounded_replay
        trust_remote_code use_fp64_gumbel use_replayssm use_tqdm_on_load
    """,
    "int": """
        block_size cp_kv_cache_interleave_size cpu_distributed_timeout_seconds data_parallel_rank data_parallel_rpc_port
        data_parallel_size data_parallel_size_local data_parallel_start_rank dbo_decode_token_threshold
        dbo_prefill_token_threshold dcp_kv_cache_interleave_size decode_context_parallel_size
        distributed_timeout_seconds dp_sync_interval elastic_ep_max_dp_size kv_cache_memory_bytes
        long_prefill_token_threshold mamba_block_size mamba_cache_philox_rounds master_port max_cpu_loras
        max_cudagraph_capture_size max_logprobs max_lora_cls_labels max_loras max_model_len max_num_active_seqs
        max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens max_num_scheduled_tokens max_num_seqs
        max_parallel_loading_workers mm_shm_cache_max_object_size_mb nnodes node_rank num_gpu_blocks_override
        offload_group_size offload_num_in_group offload_prefetch_step pipeline_parallel_size
        prefill_context_parallel_size prefill_schedule_interval prefix_cache_retention_interval prefix_match_unit
        renderer_num_workers replayssm_buffer_len safetensors_prefetch_block_size safetensors_prefetch_num_threads seed
        shutdown_timeout spec_tokens stream_interval tensor_parallel_size ubatch_size
    """,
    "float": """
        cpu_offload_gb gpu_memory_utilization kv_cache_metrics_sample kv_offloading_size
        mm_encoder_fp8_scale_save_margin mm_ipc_gpu_memory_gb mm_processor_cache_gb video_pruning_rate watermark
    """,
    "str": """
        allowed_local_media_path attention_backend code_revision config_format data_parallel_address
        distributed_executor_backend download_dir generation_config hf_config_path io_processor_plugin linear_backend
        load_format log_config_file lora_dtype master_addr mm_encoder_attn_backend mm_encoder_attn_dtype
        mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_processor_device model model_impl model_weights
        moe_backend offload_backend otlp_traces_endpoint quantization reasoning_parser reasoning_parser_plugin revision
        show_hidden_metrics_for_version spec_method spec_model tokenizer tokenizer_mode tokenizer_revision
        video_pruning_method worker_cls worker_extension_cls
    """,
    "list": """
        allowed_media_domains collect_detailed_traces cpu_offload_params cudagraph_capture_sizes
        kv_cache_dtype_skip_layers logits_processors lora_target_modules numa_bind_cpus numa_bind_nodes offload_params
        sleep_preserve_parameter_names
    """,
    "mapping": """
        additional_config attention_config aux_output_config compilation_config custom_histogram_buckets
        default_mm_loras diffusion_config ec_manager_config ec_transfer_config engram_config eplb_config
        fault_tolerance_config hf_overrides ir_op_priority kernel_config kv_events_config kv_transfer_config
        limit_mm_per_prompt logging_config mamba_config media_io_kwargs mm_processor_kwargs model_class_overrides
        model_loader_extra_config override_generation_config pooler_config profiler_config quantization_config
        reasoning_config speculative_config structured_outputs_config watermark_config weight_transfer_config
    """,
    "list or str": """
        ignore_patterns served_model_name
    """,
    "bool or str": """
        hf_token
    """,
    "mapping or str": """
        pt_load_map_location
    """,
}
"""Names by what vLLM takes for them."""
_CHOICES = {
    "all2all_backend": """
        naive pplx deepep_high_throughput deepep_low_latency deepep_v2 mori_high_throughput mori_low_latency moonep
        nixl_ep allgather_reducescatter flashinfer_all2allv flashinfer_nvlink_two_sided flashinfer_nvlink_one_sided
        passthrough
    """,
    "convert": "auto none embed classify",
    "data_parallel_backend": "ray mp",
    "dcp_comm_backend": "ag_rs a2a",
    "dtype": "auto half float16 bfloat16 float float32",
    "expert_placement_strategy": "linear round_robin",
    "gdn_prefill_backend": "flashinfer triton cutedsl aiter_flydsl",
    "jit_monitor_mode": "warn error",
    "kda_decode_backend": "auto native flashinfer triton",
    "kda_prefill_backend": "auto triton flashkda flashinfer fused",
    "kv_cache_dtype": """
        auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc
        turboquant_k3v4_nc turboquant_3bit_nc ultraquant_4bit int4_per_token_head int8_per_token_head fp8_per_token_head
        nvfp4 nvfp4_4over6
    """,
    "kv_offloading_backend": "native lmcache",
    "log_level": "CRITICAL ERROR WARNING INFO DEBUG NOTSET",
    "logprobs_mode": "raw_logits raw_logprobs processed_logits processed_logprobs",
    "mamba_backend": "TRITON FLASHINFER CPU",
    "mamba_cache_dtype": "auto float32 float16 bfloat16",
    "mamba_cache_mode": "align none",
    "mamba_ssm_cache_dtype": "auto float32 float16 bfloat16",
    "mamba_ssu_algorithm": "auto simple vertical horizontal",
    "max_lora_rank": "1 8 16 32 64 128 256 320 512",
    "mm_encoder_tp_mode": "weights data",
    "mm_hasher_algorithm": "blake3 sha256 sha512",
    "mm_processor_cache_type": "shm lru",
    "mm_tensor_ipc": "direct_rpc torch_shm",
    "optimization_level": "0 1 2 3",
    "per_request_spec_decode_metrics": "none summary detailed",
    "performance_mode": "balanced interactivity throughput",
    "prefix_caching_hash_algo": "sha256 sha256_cbor xxhash xxhash_cbor",
    "runner": "auto generate pooling draft",
    "safetensors_load_strategy": "lazy eager prefetch torchao",
    "scheduling_policy": "fcfs priority",
    "sparse_indexer_topk_backend": "auto deep_select cooperative persistent per_row flashinfer torch aiter",
}
"""What vLLM takes for the others, and nothing else. Backends of `deploy.backends` are text here."""

_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_CHOICES_OF = {name: tuple(choices.split()) for name, choices in _CHOICES.items()}
_ANY_CASE = frozenset({"mamba_backend", "sparse_indexer_topk_backend"})
"""Arguments whose values vLLM takes in either case, with `-` for `_`."""
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list, tuple, set),
    "mapping": (dict,),
}
_WORDS = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "mapping": "a mapping",
}

ENGINE_ARG_NAMES = frozenset(_KIND_OF) | frozenset(_CHOICES_OF)
"""Arguments of vLLM's engine (0.32) that a stage may set."""


def engine_arg_kinds(name: str) -> tuple[str, ...]:
    """Return what an argument may be: some of bool, int, float, str, list and mapping; nothing where it has choices."""
    return tuple(_KIND_OF[name].split(" or ")) if name in _KIND_OF else ()


def engine_arg_choices(name: str) -> tuple[str, ...]:
    """Return the values that an argument has, numbers as text; nothing where there is no list of them."""
    return _CHOICES_OF.get(name, ())


def engine_arg_fault(name: str, value: Any) -> str:
    """Return what is wrong with the value of an argument, nothing if it is one that vLLM takes. None stands for no value."""
    if value is None:
        return ""
    if choices := _CHOICES_OF.get(name):
        given = str(value)
        known = choices
        if name in _ANY_CASE:
            given, known = given.lower().replace("-", "_"), tuple(choice.lower() for choice in choices)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        fits = given in known and (is_number if known[0].isdigit() else isinstance(value, str))
        return "" if fits else f"input should be one of {', '.join(choices)}"
    kinds = engine_arg_kinds(name)
    fits = any(isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool)) for kind in kinds)
    return "" if fits or not kinds else f"input should be {' or '.join(_WORDS[kind] for kind in kinds)}"


RESERVED_NAMES = {
    "use_v2_model_runner": "set model_runner to v1 or v2",
    "supports_native_mrv2_data_plane": "it follows from the pipeline; set model_runner to v1 or v2",
    "device_ids": "set devices",
    "tokens_only": "it follows from the pipeline",
}
"""Names that Omni derives itself, and what to write instead (SF-04)."""
