"""What an author of a duplex model imports, and what omni-duplex itself offers to the hooks of omni-core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from omni_core.commands import CommandEntry
from omni_core.hookspecs import hookimpl
from omni_core.runner import RunnerEntry
from omni_core.tiny import TinyModelEntry
from omni_duplex.errors import DuplexError
from omni_duplex.model import (
    AudioIn,
    AudioOut,
    Capabilities,
    DuplexModel,
    DuplexStream,
    Fence,
    Heard,
    Listen,
    Message,
    Output,
    ReplicaPort,
    ResponseOptions,
    SessionConfig,
    TextOut,
    ToolCall,
    TurnDetection,
    TurnEnd,
)
from omni_duplex.personaplex.pipeline import ARCHITECTURES, PERSONAPLEX
from omni_duplex.personaplex.shape import is_checkpoint

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from omni_core.model_info import ModelInfo
    from omni_core.pipeline import PipelineConfig
    from omni_core.platforms import Platform
    from omni_core.stage import ResolvedStage

__all__ = [
    "AudioIn",
    "AudioOut",
    "Capabilities",
    "DuplexError",
    "DuplexModel",
    "DuplexStream",
    "Fence",
    "Heard",
    "Listen",
    "Message",
    "Output",
    "ReplicaPort",
    "ResponseOptions",
    "SessionConfig",
    "TextOut",
    "ToolCall",
    "TurnDetection",
    "TurnEnd",
    "hookimpl",
]


@hookimpl
def omni_commands() -> Iterable[CommandEntry]:
    """Offer `omni vad`."""
    return [
        CommandEntry(
            "vad", "fetch the weights of the speech detector for realtime sessions", "omni_duplex.commands.vad:command"
        )
    ]


@hookimpl
def omni_duplex_models() -> Mapping[str, str]:
    """Offer PersonaPlex."""
    return {PERSONAPLEX.model_type: "omni_duplex.personaplex.model:PersonaPlex"}


@hookimpl
def omni_pipelines() -> Iterable[PipelineConfig]:
    """Offer PersonaPlex's pipeline."""
    return (PERSONAPLEX,)


@hookimpl
def omni_resolve_pipeline(model: ModelInfo) -> str | None:
    """Know PersonaPlex by its files: its config.json says nothing."""
    return PERSONAPLEX.model_type if is_checkpoint(model.path, model.config) else None


@hookimpl
def omni_architectures() -> Mapping[str, str]:
    """Map PersonaPlex's architectures to their classes."""
    return ARCHITECTURES


@hookimpl
def omni_stage_runner(stage: ResolvedStage, platform: Platform) -> RunnerEntry | None:
    """Say what PersonaPlex's stages need beside the light engine."""
    if stage.pipeline != PERSONAPLEX.model_type:
        return None
    requires = ("torch", "transformers", "safetensors", "sentencepiece")
    return RunnerEntry("light", "omni_core.engine.light_runner:LightRunner", preload=("torch",), requires=requires)


@hookimpl
def omni_deploy_dirs() -> Iterable[Traversable]:
    """Offer the folder of bundled deploy files."""
    return (files("omni_duplex") / "deploy",)


@hookimpl
def omni_tiny_models() -> Iterable[TinyModelEntry]:
    """Offer a tiny checkpoint."""
    return (
        TinyModelEntry(
            name=PERSONAPLEX.model_type,
            summary="PersonaPlex with random weights: hears and speaks noise, both at the same time",
            target="omni_duplex.personaplex.tiny:build_tiny",
            variants=("default", "sixteen"),
        ),
    )
