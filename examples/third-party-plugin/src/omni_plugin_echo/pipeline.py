"""The topology: stage 0 spells the text as numbers, stage 1 plays them."""

from __future__ import annotations

from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

ECHO = PipelineConfig(
    model_type="echo",
    model_arch="EchoSpeller",
    hf_architectures=("EchoForSpeech",),
    default_deploy_config_name="echo.yaml",
    speech="omni_plugin_echo.speech:EchoSpeech",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="speller",
            execution_type=ExecutionType.LLM_GENERATION,
            engine_output_type="token_ids",
            owns_tokenizer=True,
            custom_process_next_stage_input_func="omni_plugin_echo.handover:whole",
            async_chunk_process_next_stage_input_func="omni_plugin_echo.handover:chunk",
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="tone",
            execution_type=ExecutionType.LLM_GENERATION,
            model_arch="EchoTone",
            input_sources=(0,),
            final_output=True,
            final_output_type="audio",
            engine_output_type="audio",
        ),
    ),
)
