"""The topology of Qwen3-TTS: the talker, token by token, and the codec decoder, chunk by chunk."""

from __future__ import annotations

from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

_HERE = "omni_models_qwen.qwen3_tts"
CODEC_FOLDER = "speech_tokenizer"
"""Where the codec is inside a checkpoint."""

QWEN3_TTS = PipelineConfig(
    model_type="qwen3_tts",
    model_arch="Qwen3TTSTalkerForConditionalGeneration",
    hf_architectures=("Qwen3TTSForConditionalGeneration",),
    default_deploy_config_name="qwen3_tts.yaml",
    speech=f"{_HERE}.speech:Qwen3TTSSpeech",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="qwen3_tts",
            execution_type=ExecutionType.LLM_AR,
            model_arch="Qwen3TTSTalkerForConditionalGeneration",
            engine_output_type="latent",
            owns_tokenizer=True,
            custom_process_input_func=f"{_HERE}.input:Qwen3TTSInput",
            custom_process_next_stage_input_func=f"{_HERE}.handoff:talker2code2wav",
            async_chunk_process_next_stage_input_func=f"{_HERE}.handoff:talker2code2wav_async_chunk",
            sampling_constraints={"detokenize": False, "stop_token_ids": [2150]},
            supports_native_mrv2_data_plane=True,
            extras={"tts_args": {"max_instructions_chars": 500, "default_voice": "vivian"}},
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="code2wav",
            execution_type=ExecutionType.LLM_GENERATION,
            model_arch="Qwen3TTSCode2Wav",
            input_sources=(0,),
            final_output=True,
            final_output_type="audio",
            engine_output_type="audio",
            sampling_constraints={"detokenize": True},
            supports_native_mrv2_data_plane=True,
            requires_full_payload_input=True,
            model_subdir=CODEC_FOLDER,
        ),
    ),
)
"""The two-stage pipeline. 2150 is the codec's end-of-speech id, the same in every released checkpoint."""

QWEN3_TTS_FUSED = PipelineConfig(
    model_type="qwen3_tts_fused",
    model_arch=QWEN3_TTS.model_arch,
    default_deploy_config_name="qwen3_tts_fused_single_gpu.yaml",
    single_stage_streams=True,
    speech=QWEN3_TTS.speech,
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="qwen3_tts",
            final_output=True,
            final_output_type="audio",
            engine_output_type="audio",
            owns_tokenizer=True,
            custom_process_input_func=f"{_HERE}.input:Qwen3TTSInput",
            sampling_constraints=QWEN3_TTS.stages[0].sampling_constraints,
            supports_native_mrv2_data_plane=True,
            extras=QWEN3_TTS.stages[0].extras,
        ),
    ),
)
"""One stage, whose process holds the codec's decoder beside the talker; chosen with `pipeline: qwen3_tts_fused` (TT-02)."""
