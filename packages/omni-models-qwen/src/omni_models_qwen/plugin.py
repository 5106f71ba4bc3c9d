"""The plugin of omni-models-qwen: what it offers to the hooks of omni-core. Read in every process; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from omni_core.hookspecs import hookimpl
from omni_core.tiny import TinyModelEntry
from omni_models_qwen.qwen2_5_omni import deploy_checks as qwen2_5_omni_checks
from omni_models_qwen.qwen2_5_omni.pipeline import QWEN2_5_OMNI, QWEN2_5_OMNI_THINKER_ONLY
from omni_models_qwen.qwen3_omni import deploy_checks as qwen3_omni_checks
from omni_models_qwen.qwen3_omni.pipeline import QWEN3_OMNI_MOE, QWEN3_OMNI_MOE_THINKER_ONLY, silent_pipeline
from omni_models_qwen.qwen3_tts import deploy_checks as qwen3_tts_checks
from omni_models_qwen.qwen3_tts.pipeline import QWEN3_TTS, QWEN3_TTS_FUSED

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from omni_core.capabilities import ModelCapabilities
    from omni_core.model_info import ModelInfo
    from omni_core.pipeline import PipelineConfig
    from omni_core.platforms import Platform
    from omni_core.runner import RunnerEntry
    from omni_core.stage import ResolvedStage

_PIPELINES = {
    pipeline.model_type: pipeline
    for pipeline in (
        QWEN3_TTS,
        QWEN3_TTS_FUSED,
        QWEN2_5_OMNI,
        QWEN2_5_OMNI_THINKER_ONLY,
        QWEN3_OMNI_MOE,
        QWEN3_OMNI_MOE_THINKER_ONLY,
    )
}
_CAPTURES = {
    "Qwen2_5OmniThinkerForConditionalGeneration": "omni_models_qwen.qwen2_5_omni.capture:captured",
    "Qwen3OmniMoeThinkerForConditionalGeneration": "omni_models_qwen.qwen3_omni.capture:captured",
}
"""vLLM's classes of thinkers by name, and which of their states a talker reads."""
_CHECKS = {
    QWEN3_TTS.model_type: qwen3_tts_checks.check_stages,
    QWEN3_TTS_FUSED.model_type: qwen3_tts_checks.check_stages,
    QWEN2_5_OMNI.model_type: qwen2_5_omni_checks.check_stages,
    QWEN3_OMNI_MOE.model_type: qwen3_omni_checks.check_stages,
}


@hookimpl
def omni_pipelines() -> Iterable[PipelineConfig]:
    """Offer the pipelines of this package."""
    return tuple(_PIPELINES.values())


@hookimpl
def omni_resolve_pipeline(model: ModelInfo) -> str | None:
    """Choose the thinker-only pipeline for Qwen3-Omni checkpoints without a talker (RG-03)."""
    return silent_pipeline(model.config)


@hookimpl
def omni_architectures() -> Mapping[str, str]:
    """Map the architectures of this package to their classes."""
    return {
        "Qwen3TTSTalkerForConditionalGeneration": "omni_models_qwen.qwen3_tts.talker:Qwen3TTSTalker",
        "Qwen3TTSCode2Wav": "omni_models_qwen.qwen3_tts.code2wav:Qwen3TTSCode2Wav",
        "Qwen2_5OmniTalkerForConditionalGeneration": "omni_models_qwen.qwen2_5_omni.talker:Qwen2_5OmniTalker",
        "Qwen2_5OmniToken2Wav": "omni_models_qwen.qwen2_5_omni.token2wav:Qwen2_5OmniToken2Wav",
        "Qwen3OmniMoeTalkerForConditionalGeneration": "omni_models_qwen.qwen3_omni.talker:Qwen3OmniTalker",
        "Qwen3OmniMoeCode2Wav": "omni_models_qwen.qwen3_omni.code2wav:Qwen3OmniCode2Wav",
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
def omni_stage_runner(stage: ResolvedStage, platform: Platform) -> RunnerEntry | None:
    """Choose for talkers whose process makes audio; all other stages run on core's."""
    return qwen3_tts_checks.talker_runner(stage) if stage.pipeline in _PIPELINES else None


@hookimpl
def omni_model_capabilities(model_class: type) -> ModelCapabilities | None:
    """Take the states that talkers read out of vLLM's own thinkers."""
    from omni_core.capabilities import HiddenCapture, ModelCapabilities

    is_vllm = model_class.__module__.startswith("vllm.")
    target = _CAPTURES.get(model_class.__name__) if is_vllm else None
    return None if target is None else ModelCapabilities(capture=HiddenCapture(target))


@hookimpl
def omni_config_resolved(stages: tuple[ResolvedStage, ...]) -> None:
    """Check what the models of this package need, before anything starts."""
    if stages and (check := _CHECKS.get(stages[0].pipeline)) is not None:
        check(stages)


@hookimpl
def omni_tiny_models() -> Iterable[TinyModelEntry]:
    """Offer tiny checkpoints."""
    return (
        TinyModelEntry(
            name="qwen3_tts",
            summary="Qwen3-TTS 12 Hz with random weights: noise instead of speech, through the whole pipeline",
            target="omni_models_qwen.qwen3_tts.tiny:build_tiny",
            variants=("custom_voice", "base", "voice_design"),
        ),
        TinyModelEntry(
            name="qwen2_5_omni",
            summary="Qwen2.5-Omni with random weights: answers text, audio and images with noise, written and spoken",
            target="omni_models_qwen.qwen2_5_omni.tiny:build_tiny",
        ),
        TinyModelEntry(
            name="qwen3_omni_moe",
            summary="Qwen3-Omni with random weights: answers text, audio and images with noise, written and spoken",
            target="omni_models_qwen.qwen3_omni.tiny:build_tiny",
            variants=("instruct", "thinking"),
        ),
    )
