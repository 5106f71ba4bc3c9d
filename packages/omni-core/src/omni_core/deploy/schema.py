"""What users may write in a deploy file: one field for each key, its type, and its meaning as the docstring below it.

Flags, documentation and messages read these models. Nothing has a default here: null means that nothing is set.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from omni_core.deploy.diffusion import DiffusionFields
from omni_core.deploy.engine_names import ENGINE_ARG_NAMES, engine_arg_fault

ModelRunner = Literal["v1", "v2"]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]


def _device_list(value: Any) -> Any:
    """Take a single id or a list of ids as the comma list it stands for."""
    if isinstance(value, list) and all(isinstance(item, (int, str)) and not isinstance(item, bool) for item in value):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _environment(value: Any) -> Any:
    """Take numbers as the strings that an environment holds."""
    if not isinstance(value, dict):
        return value
    return {
        name: str(item) if isinstance(item, (int, float)) and not isinstance(item, bool) else item
        for name, item in value.items()
    }


def _engine_arguments(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Check arguments that are no fields of their own; the error's context has the name of the one that is wrong."""
    for name, value in (values or {}).items():
        if fault := engine_arg_fault(name, value):
            raise PydanticCustomError("engine_argument", "{fault}", {"fault": fault, "argument": name})
    return values


class Strict(BaseModel):
    """A mapping whose keys are all known and whose values have exactly the declared types."""

    # Most of these models are only parts of two others: building checks of their own would double the time of a cold start.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, defer_build=True
    )


class RestartFields(Strict):
    """What happens when a stage's process dies: set for a stage, or at the top level for those that set none."""

    restart: Literal["never", "on-failure"] | None = None
    """Whether a replica whose process dies is started again (default: never)."""
    restart_backoff_s: Seconds | None = None
    """Seconds before the first restart, twice as many before each further one in a row, up to a minute (default: 1)."""
    restart_max: Positive | None = None
    """Most restarts of a replica in a row; after ten minutes of life it begins anew (default: 5)."""


class PlacementFields(RestartFields):
    """Fields of a stage that Omni itself reads; none of them goes to the stage's engine."""

    devices: Annotated[str | None, BeforeValidator(_device_list)] = None
    """Ids of the devices of this stage, separated by commas."""
    num_replicas: Positive | None = None
    """How many copies of this stage run."""
    env: Annotated[dict[str, str | None] | None, BeforeValidator(_environment)] = None
    """Environment variables of the stage's processes."""
    async_chunk: bool | None = None
    """False takes this stage out of chunked streaming."""
    model_runner: ModelRunner | None = None
    """vLLM's model runner of this stage: v1 or v2."""
    output_connectors: dict[str, Any] | None = None
    """Connectors of outgoing edges: `to_stage_N` to a name under `connectors`."""
    input_connectors: dict[str, Any] | None = None
    """Connectors of incoming edges: `from_stage_N` to a name under `connectors`."""
    default_sampling_params: dict[str, Any] | None = None
    """Sampling parameters of requests that set none."""
    default_pooling_params: dict[str, Any] | None = None
    """Pooling parameters, for a stage with `runner: pooling`."""
    subtalker_sampling_params: dict[str, Any] | None = None
    """Sampling of the model's predictor: do_sample, temperature, top_k, top_p."""
    silence_ban_frames: NotNegative | None = None
    """For how many first frames of speech a talker may not sample silence."""
    tts_max_instructions_length: NotNegative | None = None
    """Most characters of a request's `instructions`."""
    tool_call_parser: str | None = None
    """vLLM's parser that finds calls of tools in a conversation's answer, such as hermes; without one tools are refused."""
    chat_template: str | None = None
    """File with the Jinja template of conversations, instead of the checkpoint's own."""


class EngineFields(Strict):
    """Fields of a stage that go to its engine, under these names."""

    tensor_parallel_size: Positive | None = None
    """Devices among which each layer is split."""
    data_parallel_size_local: NotNegative | None = None
    """Data-parallel ranks on this host; by default all of `data_parallel_size`."""
    enable_expert_parallel: bool | None = None
    """Split experts among devices."""
    gpu_memory_utilization: Annotated[float | None, Field(gt=0, le=1)] = None
    """Share of the device's memory that the stage may use in all; sizes the KV cache."""
    kv_cache_memory_bytes: NotNegative | None = None
    """Bytes of KV cache for each rank, instead of the automatic size."""
    max_num_seqs: Positive | None = None
    """Most requests that run at once."""
    max_num_batched_tokens: Positive | None = None
    """Most tokens in one step."""
    max_model_len: Annotated[int | None, Field(ge=-1)] = None
    """Most positions of a request; -1 fits it to the KV cache."""
    enforce_eager: bool | None = None
    """Run without CUDA graphs."""
    async_scheduling: bool | None = None
    """Schedule the next step while the present one runs."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """Use one layout for all KV cache groups."""
    mm_processor_cache_gb: Annotated[float | None, Field(ge=0)] = None
    """GiB of cache for processed multimodal inputs; 0 turns it off."""
    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    """Type of the state of state-space layers."""
    compilation_config: dict[str, Any] | None = None
    """Graph sizes, compilation mode and custom operators."""
    profiler_config: dict[str, Any] | None = None
    """Settings of the profiler."""
    skip_mm_profiling: bool | None = None
    """Leave multimodal inputs out of the memory measurement at start."""
    enable_flashinfer_autotune: bool | None = None
    """Let FlashInfer choose its kernels by a trial run at start."""
    config_format: str | None = None
    """Form of the model's configuration."""
    load_format: str | None = None
    """Form of the weights."""
    tokenizer_mode: str | None = None
    """How the tokenizer is loaded."""
    reasoning_parser: str | None = None
    """vLLM's parser that tells a conversation's reasoning from its answer."""
    attention_backend: str | None = None
    """Attention backend of an autoregressive stage."""
    moe_backend: str | None = None
    """Kernels of mixtures of experts; auto is not the same as unset."""
    linear_backend: str | None = None
    """Kernels of linear layers; auto is not the same as unset."""
    enable_lora: bool | None = None
    """Accept LoRA adapters."""
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = None
    """Highest rank of an adapter."""
    max_loras: Positive | None = None
    """Most adapters in one batch."""
    max_cpu_loras: Positive | None = None
    """Most adapters kept in the host's memory."""
    lora_target_modules: list[str] | None = None
    """Modules that adapters may change."""
    fully_sharded_loras: bool | None = None
    """Split adapters fully among devices."""
    numa_bind: bool | None = None
    """Bind the stage to CPUs."""
    numa_bind_nodes: list[int] | None = None
    """NUMA node of each visible device."""
    numa_bind_cpus: list[str] | None = None
    """CPU list of each visible device, as numactl writes it."""
    additional_config: dict[str, Any] | None = None
    """Options of the model."""


class PipelineWideFields(Strict):
    """Top-level fields that apply to every stage which does not set its own value."""

    trust_remote_code: bool | None = None
    """Trust code that comes with the checkpoint."""
    distributed_executor_backend: str | None = None
    """How the workers of a stage run: uni, mp, ray, external_launcher."""
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None = None
    """Type of the weights and activations."""
    quantization: str | None = None
    """Quantization method."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV cache of equal prefixes."""
    enable_chunked_prefill: bool | None = None
    """Split long prompts over several steps."""
    data_parallel_size: Positive | None = None
    """Data-parallel ranks."""
    pipeline_parallel_size: Positive | None = None
    """Pipeline-parallel ranks."""
    weight_transfer_config: dict[str, Any] | None = None
    """How new weights arrive while the engine runs."""


class StageDeployConfig(DiffusionFields, PipelineWideFields, EngineFields, PlacementFields):
    """One entry of `stages`."""

    model_config = ConfigDict(defer_build=False)

    stage_id: Annotated[int | None, Field(ge=0)] = None
    """Which stage of the pipeline this is about."""
    engine_extras: Annotated[dict[str, Any] | None, AfterValidator(_engine_arguments)] = None
    """Further arguments of the stage's engine; a field of this table wins over the same name here."""

    @model_validator(mode="before")
    @classmethod
    def _collect_engine_arguments(cls, data: Any) -> Any:
        """Move arguments of the engine that are no field of their own into `engine_extras` (SF-03)."""
        extras = (data.get("engine_extras") or {}) if isinstance(data, dict) else None
        if not isinstance(extras, dict):
            return data
        flat = {name: value for name, value in data.items() if name in ENGINE_ARG_NAMES and name not in cls.model_fields}
        if not flat:
            return data
        rest = {name: value for name, value in data.items() if name not in flat}
        return {**rest, "engine_extras": {**extras, **flat}}


class ConnectorSpec(Strict):
    """One entry of `connectors`."""

    name: str | None = None
    """Class of the connector, such as SharedMemoryConnector. Required once all files are merged."""
    extra: dict[str, Any] | None = None
    """Options of the connector, and the chunk policy of edges that use it."""


class DeployFields(RestartFields, PipelineWideFields):
    """Top-level fields that a platform's section may set too."""

    async_chunk: bool | None = None
    """Hand on chunks while a stage still works (default: true)."""
    model_runner: ModelRunner | None = None
    """vLLM's model runner of stages that set none (default: v1)."""
    active_stream_window: NotNegative | None = None
    """Downstream stream slots that are active at once; 0 cycles through all streams (default: 0)."""
    cuda_mps: bool | None = None
    """Start and use an MPS daemon for stages that share a GPU (default: false)."""
    custom_voice_dir: str | None = None
    """Folder with prepared voices, for speech models that support them."""
    connectors: dict[str, ConnectorSpec | None] | None = None
    """Connectors by name."""
    stages: list[StageDeployConfig] | None = None
    """What single stages set, matched by `stage_id`."""


class PlatformSection(DeployFields):
    """One section of `platforms`."""


class DuplexSession(Strict):
    """Limits of full-duplex sessions."""

    max_sessions: Positive | None = None
    """Most sessions in all, those being opened or closed included (default: 1)."""
    replica_policy: Literal["legacy", "least_sessions"] | None = None
    """How sessions are placed (default: legacy)."""
    max_sessions_per_replica: Positive | None = None
    """Most sessions on one replica of a stage; required for least_sessions."""
    replica_groups: list[dict[NotNegative, NotNegative]] | None = None
    """Groups of replicas, each a mapping of stage to replica."""
    idle_ttl_s: Seconds | None = None
    """Seconds after which an idle session ends (default: 300)."""
    disconnect_grace_s: Seconds | None = None
    """Seconds for which a session outlives its connection (default: 30)."""
    reaper_interval_s: Seconds | None = None
    """Seconds between two looks for sessions to end (default: 5)."""
    resume_replay_ttl_s: Seconds | None = None
    """Seconds for which events are kept for a resume (default: 60)."""
    resume_replay_max_bytes_per_session: Positive | None = None
    """Most bytes kept for a resume (default: 8 MiB)."""
    max_pending_input_bytes_per_session: Positive | None = None
    """Most bytes of input that wait (default: 16 MiB)."""
    max_pending_turns_per_session: Positive | None = None
    """Most turns that wait (default: 4)."""
    server_vad_model_path: Annotated[str | None, Field(pattern=r"\S")] = None
    """Model of the server's voice activity detection."""
    warmup_frames: int | None = None
    """Frames to warm up each replica group with at start (default: 0)."""


class DeployConfig(DeployFields):
    """A deploy file."""

    model_config = ConfigDict(defer_build=False)

    base_config: str | None = None
    """Deploy file below this one: a path relative to this file, or the name of a bundled one."""
    pipeline: str | None = None
    """Key of the pipeline, instead of the one that the checkpoint suggests."""
    session_mode: Literal["turn", "duplex"] | None = None
    """How sessions behave (default: turn, or what the pipeline says)."""
    duplex_session: DuplexSession | None = None
    """Limits of full-duplex sessions."""
    edges: list[dict[str, Any]] | None = None
    """Edges of the KV transfer graph, each with `from` and `to`; by default those of the pipeline."""
    platforms: dict[str, PlatformSection | None] | None = None
    """What single platforms set, on top of everything else in the files."""
