"""The topologies of MOSS-TTS: the talker, token by token, and the codec decoder, which keeps a state for each stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

_HANDOFF = "omni_models_moss.handoff"
_LOCAL = "omni_models_moss.local"
_DELAY = "omni_models_moss.delay"
_REALTIME = "omni_models_moss.realtime"
_IM_END = 151645
"""Ends a turn of the chat in the released tokenizer. Local ends with `audio_end`, which its input processor adds."""
_CODEC_V1 = "OpenMOSS-Team/MOSS-Audio-Tokenizer"
_CODEC_V2 = "OpenMOSS-Team/MOSS-Audio-Tokenizer-v2"
_CODEC_NANO = "OpenMOSS-Team/MOSS-Audio-Tokenizer-Nano"
CODEC_FOLDER = "audio_tokenizer"


def _codec(model_stage: str, codec: str, *, native: bool = False) -> StagePipelineConfig:
    return StagePipelineConfig(
        stage_id=1,
        model_stage=model_stage,
        execution_type=ExecutionType.LLM_GENERATION,
        model_arch="MossTTSCodecDecoder",
        input_sources=(0,),
        final_output=True,
        final_output_type="audio",
        engine_output_type="audio",
        sampling_constraints={"detokenize": True},
        supports_native_mrv2_data_plane=native,
        retains_state_across_chunks=True,
        model_subdir=CODEC_FOLDER,
        extras={"codec": codec},
    )


def _talker(
    model_stage: str,
    constraints: Mapping[str, Any],
    inputs: str,
    codec: str,
    *,
    native: bool = False,
    handoff: str = "talker2codec",
) -> StagePipelineConfig:
    return StagePipelineConfig(
        stage_id=0,
        model_stage=model_stage,
        owns_tokenizer=True,
        engine_output_type="latent",
        custom_process_input_func=inputs,
        custom_process_next_stage_input_func=f"{_HANDOFF}:{handoff}",
        async_chunk_process_next_stage_input_func=f"{_HANDOFF}:{handoff}_async_chunk",
        sampling_constraints=constraints,
        supports_native_mrv2_data_plane=native,
        extras={"codec": codec},
    )


MOSS_TTS_LOCAL = PipelineConfig(
    model_type="moss_tts_local",
    model_arch="MossTTSLocalModel",
    hf_architectures=("MossTTSLocalModel",),
    default_deploy_config_name="moss_tts_local.yaml",
    speech=f"{_LOCAL}.speech:LocalSpeech",
    stages=(
        _talker(
            "moss_tts_local",
            {"detokenize": False, "stop_token_ids": [_IM_END]},
            f"{_LOCAL}.input:LocalInput",
            _CODEC_V2,
            native=True,
        ),
        _codec("moss_tts_local_codec", _CODEC_V2, native=True),
    ),
)
"""MOSS-TTS Local 1.5: twelve codes of one frame at once, 48 kHz stereo."""

MOSS_TTS_NANO = PipelineConfig(
    model_type="moss_tts_nano",
    model_arch="MossTTSNanoForCausalLM",
    hf_architectures=("MossTTSNanoForCausalLM",),
    default_deploy_config_name="moss_tts_nano.yaml",
    speech=f"{_LOCAL}.speech:NanoSpeech",
    stages=(
        _talker("moss_tts_nano", {"detokenize": False}, f"{_LOCAL}.input:LocalInput", _CODEC_NANO),
        _codec("moss_tts_nano_codec", _CODEC_NANO),
    ),
)
"""MOSS-TTS Nano: Local in small, sixteen codes a frame, 48 kHz stereo."""

MOSS_TTS_DELAY = PipelineConfig(
    model_type="moss_tts_delay",
    model_arch="MossTTSDelayModel",
    hf_architectures=("MossTTSDelayModel",),
    default_deploy_config_name="moss_tts_delay.yaml",
    speech=f"{_DELAY}.speech:DelaySpeech",
    stages=(
        _talker("moss_tts", {"detokenize": False}, f"{_DELAY}.input:DelayInput", _CODEC_V1, handoff="delayed_talker2codec"),
        _codec("moss_tts_codec", _CODEC_V1),
    ),
)
"""MOSS-TTS, TTSD, VoiceGenerator and SoundEffect: codebook k comes k steps late, 24 kHz."""

MOSS_TTS_REALTIME = PipelineConfig(
    model_type="moss_tts_realtime",
    model_arch="MossTTSRealtime",
    hf_architectures=("MossTTSRealtime",),
    default_deploy_config_name="moss_tts_realtime.yaml",
    speech=f"{_REALTIME}.speech:RealtimeSpeech",
    stages=(
        _talker("moss_tts_realtime", {"detokenize": False}, f"{_REALTIME}.input:RealtimeInput", _CODEC_V1),
        _codec("moss_tts_realtime_codec", _CODEC_V1),
    ),
)
"""MOSS-TTS Realtime: text goes in while speech comes out, 24 kHz."""

PIPELINES = (MOSS_TTS_LOCAL, MOSS_TTS_NANO, MOSS_TTS_DELAY, MOSS_TTS_REALTIME)
