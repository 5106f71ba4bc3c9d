"""The topology of Qwen2.5-Omni: the thinker writes, the talker turns its states into codes, Code2Wav turns those into audio."""

from __future__ import annotations

from dataclasses import replace

from omni_core.pipeline import PipelineConfig
from omni_models_qwen.talking import stages

_HERE = "omni_models_qwen.qwen2_5_omni"

THINKER = "Qwen2_5OmniForConditionalGeneration"
"""vLLM's own name of the thinker, whose class reads the checkpoint's whole configuration: so no `hf_config_name`."""
_CODEC_END = 8294

QWEN2_5_OMNI = PipelineConfig(
    model_type="qwen2_5_omni",
    model_arch=THINKER,
    hf_architectures=(THINKER, "Qwen2_5OmniModel"),
    default_deploy_config_name="qwen2_5_omni.yaml",
    chat=f"{_HERE}.chat:chat_traits",
    stages=(
        replace(stages.THINKER, custom_process_next_stage_input_func=f"{_HERE}.handoff:thinker2talker"),
        replace(
            stages.TALKER,
            model_arch="Qwen2_5OmniTalkerForConditionalGeneration",
            sampling_constraints={"detokenize": True, "stop_token_ids": [_CODEC_END]},
            custom_process_input_func=f"{_HERE}.talker_input:TalkerInput",
            custom_process_next_stage_input_func=f"{_HERE}.handoff:talker2code2wav",
        ),
        replace(stages.CODE2WAV, model_arch="Qwen2_5OmniToken2Wav", hf_config_name="token2wav_config"),
    ),
)
"""The three-stage pipeline. Nothing is handed on before a stage has ended: the codec decodes whole sequences."""

QWEN2_5_OMNI_THINKER_ONLY = PipelineConfig(
    model_type="qwen2_5_omni_thinker_only",
    model_arch=THINKER,
    chat=f"{_HERE}.chat:silent_traits",
    stages=(stages.alone(QWEN2_5_OMNI.stages[0], engine_output_type="latent"),),
)
"""Text only; chosen with `pipeline: qwen2_5_omni_thinker_only`."""
