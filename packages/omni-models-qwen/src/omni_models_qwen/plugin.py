"""The plugin of omni-models-qwen: what it offers to the hooks of omni-core. Read in every process; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from omni_core.hookspecs import hookimpl
from omni_core.tiny import TinyModelEntry
from omni_models_qwen.qwen3_tts.pipeline import QWEN3_TTS
from omni_models_qwen.qwen3_tts.stream import check_edges

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from omni_core.pipeline import PipelineConfig
    from omni_core.stage import ResolvedStage


@hookimpl
def omni_pipelines() -> Iterable[PipelineConfig]:
    """Offer the pipelines of this package."""
    return (QWEN3_TTS,)


@hookimpl
def omni_architectures() -> Mapping[str, str]:
    """Map the architectures of this package to their classes."""
    return {
        "Qwen3TTSTalkerForConditionalGeneration": "omni_models_qwen.qwen3_tts.talker:Qwen3TTSTalker",
        "Qwen3TTSCode2Wav": "omni_models_qwen.qwen3_tts.code2wav:Qwen3TTSCode2Wav",
    }


@hookimpl
def omni_hf_configs() -> Mapping[str, str]:
    """Map `qwen3_tts`, which transformers does not know, to its configuration class."""
    return {"qwen3_tts": "omni_models_qwen.qwen3_tts.config:Qwen3TTSConfig"}


@hookimpl
def omni_deploy_dirs() -> Iterable[Traversable]:
    """Offer the folder of bundled deploy files."""
    return (files("omni_models_qwen") / "deploy",)


@hookimpl
def omni_config_resolved(stages: tuple[ResolvedStage, ...]) -> None:
    """Check the chunk policy of Qwen3-TTS edges before anything starts."""
    if stages and stages[0].pipeline == QWEN3_TTS.model_type:
        check_edges(stages)


@hookimpl
def omni_tiny_models() -> Iterable[TinyModelEntry]:
    """Offer tiny Qwen3-TTS checkpoints."""
    return (
        TinyModelEntry(
            name="qwen3_tts",
            summary="Qwen3-TTS 12 Hz with random weights: noise instead of speech, through the whole pipeline",
            target="omni_models_qwen.qwen3_tts.tiny:build_tiny",
            variants=("custom_voice", "base", "voice_design"),
        ),
    )
