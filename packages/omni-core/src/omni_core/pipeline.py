"""The topology of a model: its stages and how they are connected. Frozen, owned by model packages, never read from YAML.

The fields follow the contract's tables (rules PC-01 to PC-08 and SP-01 to SP-04). Everything heavy is a target string
(`omni_core.target`), so that a pipeline module imports the standard library and this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from omni_core.capabilities import DuplexCapabilities
from omni_core.errors import ConfigError


class ExecutionType(StrEnum):
    """How a stage computes: token by token, chunk by chunk, or by denoising."""

    LLM_AR = "LLM_AR"
    LLM_GENERATION = "LLM_GENERATION"
    DIFFUSION = "DIFFUSION"


class OutputType(StrEnum):
    """The canonical output types of an engine (EO-01)."""

    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"
    LATENT = "latent"
    TOKEN_IDS = "token_ids"


_ALIASES = {
    "speech": "audio",
    "wav": "audio",
    "waveform": "audio",
    "images": "image",
    "pixel_values": "image",
    "pixels": "image",
    "latents": "latent",
    "tokens": "text for text output, or token_ids for discrete ids",
}


def parse_output_type(value: str | None, *, where: str = "") -> tuple[OutputType, ...]:
    """Return the components of an `engine_output_type`; None means text (EO-02 to EO-05).

    Raises:
        ConfigError: A component is empty, is not canonical, or has a space or capital letter in it.
    """
    if value is None:
        return (OutputType.TEXT,)
    canonical = ", ".join(OutputType)
    parts = value.replace(",", "+").split("+")
    for part in parts:
        if part not in set(OutputType):
            hint = f"write {_ALIASES[part]}" if part in _ALIASES else f"the types are {canonical}"
            raise ConfigError(f"engine_output_type {value!r} has the unknown component {part!r}", where=where, hint=hint)
    return tuple(dict.fromkeys(OutputType(part) for part in parts))


def _frozen(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


@dataclass(frozen=True, kw_only=True)
class StagePipelineConfig:
    """One stage of a pipeline: what it computes and what it hands on (SP-01)."""

    stage_id: int
    """Stable identifier; also the position in the pipeline, from 0."""
    model_stage: str
    """Logical name: talker, code2wav, thinker."""
    execution_type: ExecutionType = ExecutionType.LLM_AR
    input_sources: tuple[int, ...] = ()
    """Stages that provide this stage's inputs; empty for an entry stage."""
    final_output: bool = False
    """Whether users see what this stage makes."""
    final_output_type: str | None = None
    """The modality that users see: text, audio, image."""
    owns_tokenizer: bool = False
    requires_multimodal_data: bool = False
    model_arch: str | None = None
    """Architecture name, resolved to a class by the hook `omni_architectures`; falls back to the pipeline's."""
    hf_config_name: str | None = None
    """Nested configuration that this stage's engine reads, such as `thinker_config`."""
    engine_output_type: str | None = None
    custom_process_input_func: str | None = None
    """Target of an `InputProcessor`: turns an incoming payload into the engine's input, in the stage's process."""
    sync_process_input_func: str | None = None
    """Used instead of `custom_process_input_func` when the stage gets whole payloads (SP-02)."""
    custom_process_next_stage_input_func: str | None = None
    """Target of a function `(Handoff, StageOutput) -> Payload`, called once with all of a request's output."""
    async_chunk_process_next_stage_input_func: str | None = None
    """Target of a function `(Handoff, StageOutput) -> Payload | None`, called with each output as it is made."""
    sampling_constraints: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that nobody can override; `stop_token_ids` extend (SM-01)."""
    supports_native_mrv2_data_plane: bool = False
    requires_full_payload_input: bool = False
    retains_state_across_chunks: bool = False
    scheduler_cls: str | None = None
    model_subdir: str | None = None
    """Folder of this stage's weights inside the checkpoint."""
    tokenizer_subdir: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the model that its own modules read, such as `tts_args`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_constraints", _frozen(self.sampling_constraints))
        object.__setattr__(self, "extras", _frozen(self.extras))

    def __reduce__(self) -> tuple[object, ...]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["sampling_constraints"] = dict(self.sampling_constraints)
        values["extras"] = dict(self.extras)
        return _build_stage, (values,)

    @property
    def targets(self) -> dict[str, str]:
        """Every target this stage names, by field."""
        names = (
            "custom_process_input_func",
            "sync_process_input_func",
            "custom_process_next_stage_input_func",
            "async_chunk_process_next_stage_input_func",
            "scheduler_cls",
        )
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def _build_stage(values: dict[str, Any]) -> StagePipelineConfig:
    return StagePipelineConfig(**values)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """A model's fixed topology (PC-02). Construction reports every fault at once (PC-03 to PC-05)."""

    model_type: str
    """Registry key; usually the `model_type` of the checkpoint's config.json."""
    stages: tuple[StagePipelineConfig, ...]
    model_arch: str = ""
    default_deploy_config_name: str | None = None
    """Bundled deploy file used when the user names none (RG-13)."""
    hf_architectures: tuple[str, ...] = ()
    hf_config_predicate: Callable[[Mapping[str, Any]], bool] | None = None
    """Choose by the raw config.json between pipelines with the same architecture (RG-07)."""
    diffusers_class_name: str | None = None
    diffusers_class_aliases: tuple[str, ...] = ()
    duplex_plugin: str | None = None
    """Target of the pipeline's `DuplexModel` (omni-duplex), or the id under which a plugin offers it; None without one."""
    duplex_capabilities: DuplexCapabilities = field(default_factory=DuplexCapabilities)
    """What the duplex plugin can do, as far as a deployment depends on it."""
    default_session_mode: str | None = None
    supports_duplex_mrv2: bool = False
    endpoint_restrictions: tuple[tuple[str, str], ...] = ()
    stage_cli_aliases: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    single_stage_streams: bool = False
    """Whether the one stage of this pipeline emits chunks itself, so that `async_chunk` is not forced off for it (DY-06)."""
    speech: str | None = None
    """Target of the pipeline's `SpeechAdapter` (`omni_core.speech`); set for pipelines that speak a given text."""
    chat: str | None = None
    """Target of a function `(ModelInfo) -> ChatTraits` (`omni_core.chat`); set for pipelines that answer conversations."""

    def __post_init__(self) -> None:
        if faults := _faults(self):
            raise ConfigError(
                "\n".join([f"pipeline {self.model_type!r} is not valid:", *(f"  - {fault}" for fault in faults)]),
                hint="correct the pipeline's definition",
            )

    def stage(self, stage_id: int) -> StagePipelineConfig:
        """Return the stage with this id."""
        return self.stages[stage_id]

    def consumers(self, stage_id: int) -> tuple[StagePipelineConfig, ...]:
        """Return the stages that take this stage's output."""
        return tuple(stage for stage in self.stages if stage_id in stage.input_sources)

    def ancestors(self, stage_ids: Iterable[int]) -> frozenset[int]:
        """Return these stages and every stage that feeds them."""
        found: set[int] = set()
        left = list(stage_ids)
        while left:
            stage_id = left.pop()
            if stage_id not in found:
                found.add(stage_id)
                left.extend(self.stages[stage_id].input_sources)
        return frozenset(found)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Every (from, to) pair, in the order of the consuming stage."""
        return tuple((source, stage.stage_id) for stage in self.stages for source in stage.input_sources)

    def architecture(self, stage_id: int) -> str:
        """Return the architecture name of a stage."""
        return self.stages[stage_id].model_arch or self.model_arch


def _faults(pipeline: PipelineConfig) -> list[str]:
    stages = pipeline.stages
    if not stages:
        return ["it has no stages"]
    faults = []
    ids = [stage.stage_id for stage in stages]
    if repeated := sorted({i for i in ids if ids.count(i) > 1}):
        faults.append(f"stage ids {repeated} appear twice")
    elif ids != list(range(len(ids))):
        faults.append(f"stage ids must be contiguous from 0 in order, not {ids}")
    for stage in stages:
        name = f"stage {stage.stage_id} ({stage.model_stage})"
        if stage.stage_id in stage.input_sources:
            faults.append(f"{name} lists itself as an input source")
        if missing := [source for source in stage.input_sources if source not in ids]:
            faults.append(f"{name} takes input from stages {missing}, which do not exist")
        try:
            parse_output_type(stage.engine_output_type, where=name)
        except ConfigError as error:
            faults.append(str(error))
    if all(stage.input_sources for stage in stages):
        faults.append("no stage is an entry point: every stage has input sources")
    if not any(stage.final_output for stage in stages):
        faults.append("no stage has final_output, so no request would ever end")
    if cycle := _cycle(stages):
        faults.append(f"stages {' -> '.join(map(str, cycle))} form a cycle")
    return faults


def _cycle(stages: Iterable[StagePipelineConfig]) -> list[int]:
    sources = {stage.stage_id: [s for s in stage.input_sources if s != stage.stage_id] for stage in stages}
    done: set[int] = set()

    def visit(node: int, path: list[int]) -> list[int]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done or node not in sources:
            return []
        for source in sources[node]:
            if found := visit(source, [*path, node]):
                return found
        done.add(node)
        return []

    for stage_id in sources:
        if found := visit(stage_id, []):
            return found
    return []
