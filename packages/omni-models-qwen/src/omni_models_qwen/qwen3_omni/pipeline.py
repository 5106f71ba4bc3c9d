"""The topology of Qwen3-Omni: the thinker writes, the talker turns its states into codes, Code2Wav turns those into audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_core.capabilities import DuplexCapabilities
from omni_core.pipeline import PipelineConfig
from omni_models_qwen.talking import stages

_HERE = "omni_models_qwen.qwen3_omni"
_CODEC_END = 2150

THINKER = "Qwen3OmniMoeForConditionalGeneration"
"""vLLM's own name of the thinker, whose class reads the checkpoint's whole configuration: so no `hf_config_name`."""

QWEN3_OMNI_MOE = PipelineConfig(
    model_type="qwen3_omni_moe",
    model_arch=THINKER,
    hf_architectures=(THINKER,),
    default_deploy_config_name="qwen3_omni_moe.yaml",
    duplex_plugin=f"{_HERE}.duplex:Qwen3OmniDuplex",
    duplex_capabilities=DuplexCapabilities(supports_session_resume=True, supports_multi_session_same_replica=True),
    default_session_mode="turn",
    supports_duplex_mrv2=True,
    chat=f"{_HERE}.chat:chat_traits",
    endpoint_restrictions=(
        ("completions", "Qwen3-Omni answers conversations: its prompt is made of turns; use /v1/chat/completions"),
    ),
    stages=(
        replace(
            stages.THINKER,
            custom_process_next_stage_input_func=f"{_HERE}.handoff:thinker2talker",
            async_chunk_process_next_stage_input_func=f"{_HERE}.handoff:thinker2talker_async_chunk",
            supports_native_mrv2_data_plane=True,
        ),
        replace(
            stages.TALKER,
            model_arch="Qwen3OmniMoeTalkerForConditionalGeneration",
            custom_process_input_func=f"{_HERE}.talker_input:TalkerInput",
            custom_process_next_stage_input_func=f"{_HERE}.windows:talker2code2wav",
            async_chunk_process_next_stage_input_func=f"{_HERE}.windows:talker2code2wav_async_chunk",
            sampling_constraints={"detokenize": False, "stop_token_ids": [_CODEC_END]},
            supports_native_mrv2_data_plane=True,
        ),
        replace(
            stages.CODE2WAV,
            model_arch="Qwen3OmniMoeCode2Wav",
            hf_config_name="code2wav_config",
            supports_native_mrv2_data_plane=True,
        ),
    ),
)
"""The three-stage pipeline of checkpoints that speak."""

QWEN3_OMNI_MOE_THINKER_ONLY = PipelineConfig(
    model_type="qwen3_omni_moe_thinker_only",
    model_arch=THINKER,
    default_deploy_config_name="qwen3_omni_moe_thinking.yaml",
    chat=f"{_HERE}.chat:silent_traits",
    stages=(stages.alone(QWEN3_OMNI_MOE.stages[0], engine_output_type="text"),),
)
"""Text only: for checkpoints without a talker, and for others with `pipeline: qwen3_omni_moe_thinker_only`."""


def silent_pipeline(config: Mapping[str, Any]) -> str | None:
    """Return the key of the thinker-only pipeline for a checkpoint without a talker (Thinking, Captioner), else None (RG-03).

    Args:
        config: The content of its config.json.
    """
    kinds = (config.get("model_type"), *(config.get("architectures") or ()))
    is_ours = QWEN3_OMNI_MOE.model_type in kinds or THINKER in kinds
    return QWEN3_OMNI_MOE_THINKER_ONLY.model_type if is_ours and config.get("enable_audio_output") is False else None
