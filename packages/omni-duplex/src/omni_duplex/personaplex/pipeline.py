"""The topology of PersonaPlex: the network, which hears and speaks in codes, and the codec's decoder."""

from __future__ import annotations

from omni_core.capabilities import DuplexCapabilities
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig
from omni_duplex.personaplex.shape import MODEL_TYPE

_HERE = "omni_duplex.personaplex"

PERSONAPLEX = PipelineConfig(
    model_type=MODEL_TYPE,
    model_arch="PersonaPlexForConditionalGeneration",
    default_deploy_config_name="personaplex.yaml",
    duplex_plugin=MODEL_TYPE,
    duplex_capabilities=DuplexCapabilities(supports_session_resume=False, supports_multi_session_same_replica=True),
    default_session_mode="duplex",
    stages=(
        StagePipelineConfig(
            stage_id=0,
            model_stage="personaplex",
            execution_type=ExecutionType.LLM_GENERATION,
            final_output=True,
            final_output_type="text",
            owns_tokenizer=True,
            engine_output_type="latent",
            custom_process_next_stage_input_func=f"{_HERE}.handoff:stage2code2wav",
            async_chunk_process_next_stage_input_func=f"{_HERE}.handoff:stage2code2wav_async_chunk",
            retains_state_across_chunks=True,
        ),
        StagePipelineConfig(
            stage_id=1,
            model_stage="code2wav",
            execution_type=ExecutionType.LLM_GENERATION,
            model_arch="PersonaPlexCode2Wav",
            input_sources=(0,),
            final_output=True,
            final_output_type="audio",
            engine_output_type="audio",
            retains_state_across_chunks=True,
        ),
    ),
)
ARCHITECTURES = {
    "PersonaPlexForConditionalGeneration": f"{_HERE}.stage:PersonaPlexStage",
    "PersonaPlexCode2Wav": f"{_HERE}.code2wav:PersonaPlexCode2Wav",
}
