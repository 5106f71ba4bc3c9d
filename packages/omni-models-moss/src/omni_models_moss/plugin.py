"""The plugin of omni-models-moss: what it offers to the hooks of omni-core. Read in every process; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from omni_core.hookspecs import hookimpl
from omni_core.tiny import TinyModelEntry
from omni_models_moss.pipeline import MOSS_TTS_DELAY, MOSS_TTS_LOCAL, MOSS_TTS_REALTIME
from omni_models_moss.stream import check_edges, report_first_audio

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from omni_core.pipeline import PipelineConfig
    from omni_core.platforms import Platform
    from omni_core.runner import RunnerEntry
    from omni_core.stage import ResolvedStage

_PIPELINES = {pipeline.model_type: pipeline for pipeline in (MOSS_TTS_LOCAL, MOSS_TTS_DELAY, MOSS_TTS_REALTIME)}


@hookimpl
def omni_pipelines() -> Iterable[PipelineConfig]:
    """Offer the pipelines of this package."""
    return tuple(_PIPELINES.values())


@hookimpl
def omni_architectures() -> Mapping[str, str]:
    """Map the architectures of this package to their classes."""
    return {
        "MossTTSLocalModel": "omni_models_moss.local.talker:MossTTSLocalTalker",
        "MossTTSCodecDecoder": "omni_models_moss.code2wav:MossTTSCodecDecoder",
    }


@hookimpl
def omni_hf_configs() -> Mapping[str, str]:
    """Map `moss_tts_local`, which transformers does not know, to its configuration class."""
    return {"moss_tts_local": "omni_models_moss.local.config:MossTTSLocalConfig"}


@hookimpl
def omni_deploy_dirs() -> Iterable[Traversable]:
    """Offer the folder of bundled deploy files."""
    return (files("omni_models_moss") / "deploy",)


@hookimpl
def omni_stage_runner(stage: ResolvedStage, platform: Platform) -> RunnerEntry | None:
    """Say which stages of this package's pipelines have no model class yet; the choice for all others is core's."""
    from omni_core.runner import UNAVAILABLE

    return UNAVAILABLE if stage.pipeline in _PIPELINES and stage.architecture_target is None else None


@hookimpl
def omni_config_resolved(stages: tuple[ResolvedStage, ...]) -> None:
    """Check the chunk policy of this package's edges before anything starts, and log what has no effect."""
    if stages and stages[0].pipeline in _PIPELINES:
        check_edges(stages)
        report_first_audio(stages)


@hookimpl
def omni_tiny_models() -> Iterable[TinyModelEntry]:
    """Offer tiny checkpoints."""
    return (
        TinyModelEntry(
            name="moss_tts_local",
            summary="MOSS-TTS Local 1.5 and its codec with random weights: stereo noise instead of speech",
            target="omni_models_moss.local.tiny:build_tiny",
        ),
    )
