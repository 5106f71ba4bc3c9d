"""One stage as it will run: topology and deploy configuration resolved into one immutable record, handed to its process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from omni_core.pipeline import PipelineConfig, StagePipelineConfig

if TYPE_CHECKING:
    from omni_core.deploy.duplex import DuplexPlan
    from omni_core.deploy.mps import MpsPlan
from omni_core.target import split_target


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
    dtype: str | None = None
    """`dtype` of the stage that takes the payloads, for a producer that does a part of its work; None where it says none."""


@dataclass(frozen=True)
class Source:
    """Where a value came from."""

    layer: str
    """`default`, `base`, `overlay`, `platform`, `flag`, `stage override`, `pipeline`."""
    place: str = ""
    """`file:line:column` or the flag as typed."""
    value: Any = field(default=None, compare=False)
    """What was set there; None where the value below was erased."""


@dataclass(frozen=True)
class RestartPolicy:
    """What happens when a replica's process ends that was ready."""

    when: Literal["never", "on-failure"] = "never"
    backoff_s: float = 1.0
    """Seconds before the first restart; each further one in a row waits twice as long, up to a minute."""
    max: int = 5
    """Most restarts in a row. A replica that has run for ten minutes begins anew."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a deploy file that say this, none for the default."""
        if self == RestartPolicy():
            return {}
        return {"restart": self.when, "restart_backoff_s": self.backoff_s, "restart_max": self.max}


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
    """Target of the StageRunner; empty for a stage that cannot be started here (`runner.UNAVAILABLE`)."""
    preload: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    """Modules that must be installed for the runner (`RunnerEntry.requires`)."""
    platform: str = "cpu"
    model_runner: Literal["v1", "v2"] = "v1"
    async_chunk: bool = False
    devices: str | None = None
    num_replicas: int = 1
    restart: RestartPolicy = RestartPolicy()
    env: Mapping[str, str] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of this stage's engine, unset ones left out."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Baseline sampling parameters, constraints applied (SM-01)."""
    duplex_max_sessions: int | None = None
    """Most full-duplex sessions of a replica, for stages that keep something for each (DX-03); None in turn mode."""
    inputs: tuple[ResolvedEdge, ...] = ()
    outputs: tuple[ResolvedEdge, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where each value of `engine_args`, `sampling.*` and the fields above came from; values in mappings are `name.key`."""
    losers: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    """For each key of `sources`, the values that lost, the strongest first."""

    @property
    def stage_id(self) -> int:
        """The stage's id."""
        return self.topology.stage_id

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that a process of this stage imports: its runner's, then the model's."""
        if self.architecture_target is None:
            return self.preload
        return (*self.preload, split_target(self.architecture_target)[0])

    @property
    def config_overrides(self) -> Mapping[str, Any]:
        """The values of the checkpoint's config.json that this stage replaces, its `hf_overrides`."""
        found = self.engine_args.get("hf_overrides")
        return found if isinstance(found, Mapping) else {}

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
    """Where `async_chunk`, these values and those of edges (`edge.0-1.connector`, `.options.*`, `.stream.*`) came from."""
    losers: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    """For each key of `sources`, the values that lost, the strongest first."""
    duplex: DuplexPlan | None = None
    """Who places which full-duplex session where; None where the session mode is turn."""
    mps: MpsPlan | None = None
    """Which MPS daemons are wanted; None where `cuda_mps` is off or the platform is not CUDA."""
    warnings: tuple[str, ...] = ()
    """What resolving had to say without refusing it; logged once by whoever starts the pipeline."""

    @property
    def config_hash(self) -> str:
        """Sixteen hexadecimal digits that are equal for deployments which behave alike.

        They cover the pipeline's key, every resolved value of its stages and edges, the platform, and the values that no
        stage owns. Places of files, provenance and the names of connectors are left out.
        """
        facts = {
            "pipeline": self.config.model_type,
            "platform": self.platform,
            "async_chunk": self.async_chunk,
            "values": self.values,
            "stages": [_stage_facts(stage) for stage in self.stages],
        }
        text = json.dumps(_canonical(facts), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


_BEHAVIOUR = (
    "architecture",
    "runner",
    "model_runner",
    "async_chunk",
    "devices",
    "num_replicas",
    "env",
    "engine_args",
    "sampling",
)


def _stage_facts(stage: ResolvedStage) -> dict[str, Any]:
    facts = {name: getattr(stage, name) for name in _BEHAVIOUR}
    edges = [
        {
            "to": edge.to_stage,
            "connector": edge.target,
            "options": edge.options,
            "stream": edge.stream,
            "chunks": edge.async_chunk,
        }
        for edge in stage.outputs
    ]
    return {"stage_id": stage.stage_id, **facts, **stage.restart.fields, "outputs": edges}


def _canonical(value: Any) -> Any:
    """Return a value as JSON has it: keys as text, and whole numbers alike whether written 1 or 1.0."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)
