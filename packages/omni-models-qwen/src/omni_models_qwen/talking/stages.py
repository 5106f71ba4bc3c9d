"""The stages that the pipelines of conversations have in common, as far as they are the same. Read in every process."""

from __future__ import annotations

from dataclasses import replace

from omni_core.pipeline import ExecutionType, StagePipelineConfig

THINKER = StagePipelineConfig(
    stage_id=0,
    model_stage="thinker",
    final_output=True,
    final_output_type="text",
    owns_tokenizer=True,
    requires_multimodal_data=True,
    engine_output_type="latent",
    sampling_constraints={"detokenize": True},
)
"""vLLM's model, which reads and writes."""
TALKER = StagePipelineConfig(
    stage_id=1,
    model_stage="talker",
    hf_config_name="talker_config",
    input_sources=(0,),
    engine_output_type="latent",
    requires_full_payload_input=True,
)
"""From the thinker's states to codes."""
CODE2WAV = StagePipelineConfig(
    stage_id=2,
    model_stage="code2wav",
    execution_type=ExecutionType.LLM_GENERATION,
    input_sources=(1,),
    final_output=True,
    final_output_type="audio",
    engine_output_type="audio",
    sampling_constraints={"detokenize": True},
    requires_full_payload_input=True,
)
"""From codes to audio."""


def alone(thinker: StagePipelineConfig, *, engine_output_type: str) -> StagePipelineConfig:
    """Return a pipeline's thinker as its only stage."""
    return replace(
        thinker,
        engine_output_type=engine_output_type,
        custom_process_next_stage_input_func=None,
        async_chunk_process_next_stage_input_func=None,
        supports_native_mrv2_data_plane=False,
    )
