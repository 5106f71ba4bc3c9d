"""The topology of Qwen2.5-Omni: the thinker writes, the talker turns its states into codes, Code2Wav turns those into audio."""

from __future__ import annotations

from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

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
        StagePipelineConfig(
            stage_id=0,
            model_stage="thinker",
            final_output=True,
            final_output_type="text",
            owns_tokenizer=True,
            requires_multimodal_data=True,
            engine_output_type="latent",
            sampling_constraints={"detokenize": True},
            custom_process_next_stage_input_func=f"{_HERE}.handoff:thinker2talker",
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="talker",
            model_arch="Qwen2_5OmniTalkerForConditionalGeneration",
            hf_config_name="talker_config",
            input_sources=(0,),
            engine_output_type="latent",
            sampling_constraints={"detokenize": True, "stop_token_ids": [_CODEC_END]},
            requires_full_payload_input=True,
            custom_process_input_func=f"{_HERE}.talker_input:TalkerInput",
            custom_process_next_stage_input_func=f"{_HERE}.handoff:talker2code2wav",
        ),
        StagePipelineConfig(
            stage_id=2,
            model_stage="code2wav",
            execution_type=ExecutionType.LLM_GENERATION,
            model_arch="Qwen2_5OmniToken2Wav",
            hf_config_name="token2wav_config",
            input_sources=(1,),
            final_output=True,
            final_output_type="audio",
            engine_output_type="audio",
            sampling_constraints={"detokenize": True},
            requires_full_payload_input=True,
        ),
    ),
)
"""The three-stage pipeline. Nothing is handed on before a stage has ended: the codec decodes whole sequences."""

QWEN2_5_OMNI_THINKER_ONLY = PipelineConfig(
    model_type="qwen2_5_omni_thinker_only",
    model_arch=THINKER,
    chat=f"{_HERE}.chat:silent_traits",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="thinker",
            final_output=True,
            final_output_type="text",
            owns_tokenizer=True,
            requires_multimodal_data=True,
            engine_output_type="latent",
            sampling_constraints={"detokenize": True},
        ),
    ),
)
"""Text only; chosen with `pipeline: qwen2_5_omni_thinker_only`."""
