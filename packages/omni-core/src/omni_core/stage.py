"""One stage as it will run: topology and deploy configuration resolved into one immutable record, handed to its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from omni_core.pipeline import PipelineConfig, StagePipelineConfig


@dataclass(frozen=True)
class ResolvedEdge:
    """One edge and the connector that serves it."""

    from_stage: int
    to_stage: int
    connector: str
    """Key under `connectors:`, or the class name where the edge got the default."""
    target: str
    """Target of the Connector subclass."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `extra` that the transport owns."""
    stream: Mapping[str, Any] = field(default_factory=dict)
    """The other keys of `extra`: chunk policy and model options of this edge."""
    async_chunk: bool = False
    """Whether chunks travel while the producer still works."""


@dataclass(frozen=True)
class Source:
    """Where a value came from."""

    layer: str
    """`default`, `base`, `overlay`, `platform`, `flag`, `stage override`, `pipeline`."""
    place: str = ""
    """`file:line:column` or the flag as typed."""


@dataclass(frozen=True)
class ResolvedStage:
    """Everything a stage's process needs to know."""

    pipeline: str
    topology: StagePipelineConfig
    model: str
    """Folder of the checkpoint."""
    architecture: str
    architecture_target: str | None
    """Target of the model class, None for an architecture that vLLM itself has."""
    runner: str
    """Target of the StageRunner."""
    preload: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Modules that must be installed for the runner (`RunnerEntry.requires`)."""
    platform: str = "cpu"
    model_runner: Literal["v1", "v2"] = "v1"
    async_chunk: bool = False
    devices: str | None = None
    num_replicas: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of this stage's engine, unset ones left out."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Baseline sampling parameters, constraints applied (SM-01)."""
    inputs: tuple[ResolvedEdge, ...] = ()
    outputs: tuple[ResolvedEdge, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where each value of `engine_args`, `sampling.*` and the fields above came from."""

    @property
    def stage_id(self) -> int:
        """The stage's id."""
        return self.topology.stage_id

    @property
    def name(self) -> str:
        """`0 (talker)`: how messages name this stage."""
        return f"{self.topology.stage_id} ({self.topology.model_stage})"


@dataclass(frozen=True)
class ResolvedPipeline:
    """A whole deployment, ready to start."""

    config: PipelineConfig
    model: str
    """Folder of the checkpoint."""
    stages: tuple[ResolvedStage, ...]
    async_chunk: bool
    platform: str
    files: tuple[str, ...] = ()
    """The deploy files that were read, the most specific first."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Deploy-level values that no single stage owns, such as `custom_voice_dir`."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where `async_chunk` and each of these values came from."""
