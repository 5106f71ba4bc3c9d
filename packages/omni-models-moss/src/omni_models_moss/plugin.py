"""The plugin of omni-models-moss: what it offers to the hooks of omni-core. Read in every process; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from omni_core.hookspecs import hookimpl
from omni_core.tiny import TinyModelEntry
from omni_models_moss.overrides import check_overrides
from omni_models_moss.pipeline import PIPELINES
from omni_models_moss.stream import check_edges, check_first_audio

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from omni_core.pipeline import PipelineConfig
    from omni_core.stage import ResolvedStage

_OURS = frozenset(pipeline.model_type for pipeline in PIPELINES)


@hookimpl
def omni_pipelines() -> Iterable[PipelineConfig]:
    """Offer the pipelines of this package."""
    return PIPELINES


@hookimpl
def omni_architectures() -> Mapping[str, str]:
    """Map the architectures of this package to their classes."""
    return {
        "MossTTSLocalModel": "omni_models_moss.local.talker:MossTTSLocalTalker",
        "MossTTSNanoForCausalLM": "omni_models_moss.local.talker:MossTTSNanoTalker",
        "MossTTSDelayModel": "omni_models_moss.delay.talker:MossTTSDelayTalker",
        "MossTTSRealtime": "omni_models_moss.realtime.talker:MossTTSRealtimeTalker",
        "MossTTSCodecDecoder": "omni_models_moss.code2wav:MossTTSCodecDecoder",
    }


@hookimpl
def omni_hf_configs() -> Mapping[str, str]:
    """Map the models of this package, which transformers does not know, to their configuration classes."""
    module = "omni_models_moss.hf_config"
    return {
        "moss_tts_local": f"{module}:MossTTSLocalConfig",
        "moss_tts_nano": f"{module}:MossTTSNanoConfig",
        "moss_tts_delay": f"{module}:MossTTSDelayConfig",
        "moss_tts_realtime": f"{module}:MossTTSRealtimeConfig",
    }


@hookimpl
def omni_deploy_dirs() -> Iterable[Traversable]:
    """Offer the folder of bundled deploy files."""
    return (files("omni_models_moss") / "deploy",)


@hookimpl
def omni_config_resolved(stages: tuple[ResolvedStage, ...]) -> None:
    """Check the options of this package's edges and stages before anything starts, and say what has no effect."""
    if stages and stages[0].pipeline in _OURS:
        check_edges(stages)
        check_first_audio(stages)
        check_overrides(stages)


@hookimpl
def omni_tiny_models() -> Iterable[TinyModelEntry]:
    """Offer tiny checkpoints."""
    noise = "with random weights: noise instead of speech"
    return (
        TinyModelEntry(
            name="moss_tts_local",
            summary=f"MOSS-TTS Local 1.5 and its codec {noise}, in stereo",
            target="omni_models_moss.local.tiny:build_tiny",
        ),
        TinyModelEntry(
            name="moss_tts_nano",
            summary=f"MOSS-TTS Nano and its codec {noise}, in stereo",
            target="omni_models_moss.local.tiny_nano:build_tiny",
        ),
        TinyModelEntry(
            name="moss_tts_delay",
            summary=f"MOSS-TTS and its codec {noise}",
            target="omni_models_moss.delay.tiny:build_tiny",
            variants=("tts", "ttsd", "voice_generator", "sound_effect"),
        ),
        TinyModelEntry(
            name="moss_tts_realtime",
            summary=f"MOSS-TTS Realtime and its codec {noise}",
            target="omni_models_moss.realtime.tiny:build_tiny",
        ),
    )
