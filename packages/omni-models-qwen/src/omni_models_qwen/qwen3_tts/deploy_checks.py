"""What a deployment of Qwen3-TTS must fulfil beyond its chunk policy; checked in the main process before anything starts.

Options of the single-stage pipeline are in `additional_config` of its stage, those of two stages in the connector's `extra`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from omni_core import envs
from omni_core.deploy.notes import warn
from omni_core.errors import ConfigError
from omni_core.runner import RunnerEntry
from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_models_qwen.qwen3_tts.pipeline import CODEC_FOLDER, QWEN3_TTS, QWEN3_TTS_FUSED
from omni_models_qwen.qwen3_tts.stream import ALWAYS, KEYS, TF32, WITHOUT_EFFECT, advise_chunks, advise_tf32, check_edges
from omni_models_qwen.talking.options import IN_THE_EDGE, check_known, own_options, place_of

logger = logging.getLogger(__name__)

_DECODE = "talker_stream_decode"
_STREAM_FIRST = "talker_stream_first_audio"
_TALKER_FIRST = "talker_first_audio"
_CODE2WAV = "Qwen3TTSCode2Wav"
_ALWAYS_SO = ("code_predictor_kv_cache", "code_predictor_fused_sampling", "code_predictor_fused")
_SWITCHES = (_DECODE, _STREAM_FIRST, TF32, *_ALWAYS_SO)
_NUMBERS = ("ref_code_context_frames", "ref_audio_artifact_cache_max_entries", "decode_batch_max_size")
FUSED_OPTIONS = frozenset((*_SWITCHES, *_NUMBERS))
"""Options of the single-stage pipeline (TT-05)."""


def check_stages(stages: Sequence[ResolvedStage]) -> None:
    """Check a resolved deployment of either pipeline, and log what an option cannot do here.

    Raises:
        ConfigError: An option is unknown or wrong (E34), a condition of the single stage is not met (TT-03), or options of the
            two pipelines are mixed (TT-04, TT-06).
    """
    check_edges(stages)
    if stages[0].pipeline == QWEN3_TTS_FUSED.model_type:
        (stage,) = stages
        _check_options(stage)
        _check_fused(stage)
        advise_tf32(own_options(stage), place_of(stage, TF32), stage.platform, stage.engine_args.get("dtype"))
        return
    for stage in stages:
        _check_two_stages(stage)
        for edge in stage.outputs:
            _advise(edge)
            advise_tf32(edge.stream, f"connectors.{edge.connector}.extra", stage.platform, edge.dtype)
            _report_first_audio(stage, edge)


def obstacles(stage: ResolvedStage) -> list[str]:
    """Return what keeps a talker from making audio in its own process (TT-03, TT-11); nothing if it can.

    With `OMNI_TEST_CUDA_PATHS=1` any platform and model runner will do, so that tests without a GPU run the same code.
    """
    given = stage.engine_args
    anywhere = envs.is_on("OMNI_TEST_CUDA_PATHS")
    sizes = {name: given.get(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")}
    executor = given.get("distributed_executor_backend") or "uni"
    found = {
        f"the platform is {stage.platform}, not cuda": stage.platform != "cuda" and not anywhere,
        f"model_runner is {stage.model_runner}, not v2": stage.model_runner != "v2" and not anywhere,
        "async_chunk is off": not stage.async_chunk,
        "codec_streaming is off": any(edge.stream.get("codec_streaming") is False for edge in stage.outputs),
        **{f"{name} is {size}, not 1": size != 1 for name, size in sizes.items()},
        f"distributed_executor_backend is {executor}, not uni": executor != "uni",
        "enable_prefix_caching is not false": given.get("enable_prefix_caching") is not False,
    }
    return [text for text, applies in found.items() if applies]


def _check_fused(stage: ResolvedStage) -> None:
    if not own_options(stage).get(_DECODE):
        raise ConfigError(
            f"pipeline {stage.pipeline!r} makes audio in stage {stage.name}, which needs {_DECODE}: true",
            where=place_of(stage, _DECODE),
            hint="base the deploy file on qwen3_tts_fused_single_gpu.yaml",
            param="additional_config",
        )
    if unmet := obstacles(stage):
        raise ConfigError(
            f"pipeline {stage.pipeline!r} cannot run: {'; '.join(unmet)}",
            where=f"stage {stage.name}",
            hint="correct that, or use the two-stage pipeline with qwen3_tts.yaml",
        )


def _check_options(stage: ResolvedStage) -> None:
    """Check the options of the single stage; keys that are not ours are left to vLLM."""
    own = own_options(stage)
    if _TALKER_FIRST in own:
        together = f" and cannot go together with {_STREAM_FIRST}" if own.get(_STREAM_FIRST) else ""
        raise ConfigError(
            f"{_TALKER_FIRST} needs the two stages of another pipeline{together}",
            where=place_of(stage, _TALKER_FIRST),
            hint=f"remove it; {_STREAM_FIRST} is what {stage.pipeline!r} has",
            param=_TALKER_FIRST,
        )
    check_known(stage, FUSED_OPTIONS, f"pipeline {stage.pipeline!r}")
    for key, value in own.items():
        if key in _SWITCHES and not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false, not {value!r}", where=place_of(stage, key), param=key)
        if key in _NUMBERS and not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            what = f"{key} must be a whole number of at least 0, not {value!r}"
            raise ConfigError(what, where=place_of(stage, key), param=key)
    _report_idle(stage, _ALWAYS_SO)


def _report_idle(stage: ResolvedStage, switches: Sequence[str]) -> None:
    """Say which switches of the code predictor are off in a stage's own options, and stay on."""
    if idle := [key for key in switches if own_options(stage).get(key) is False]:
        logger.info("stage %s: without effect here: %s (%s)", stage.name, ", ".join(idle), ALWAYS)


def _check_two_stages(stage: ResolvedStage) -> None:
    own = own_options(stage)
    first_audio = any(edge.stream.get(_TALKER_FIRST) for edge in stage.outputs)
    if first_audio and own.get(_STREAM_FIRST):
        raise ConfigError(
            f"stage {stage.name} has both {_STREAM_FIRST} and, in its connector, {_TALKER_FIRST}; only one can deliver the "
            "first frame",
            where=place_of(stage, _STREAM_FIRST),
            hint=f"remove {_STREAM_FIRST}, which belongs to the single-stage pipeline",
            param=_STREAM_FIRST,
        )
    for key in own:
        where = place_of(stage, key)
        if key in FUSED_OPTIONS - KEYS and own[key] is not False:
            raise ConfigError(
                f"{key} is for the single-stage pipeline; stage {stage.name} of {stage.pipeline!r} makes codes for Code2Wav",
                where=where,
                hint="pass the whole profile, qwen3_tts_fused_single_gpu.yaml",
                param=key,
            )
        if key in KEYS:
            raise ConfigError(
                f"{key} is an option of the edge, not of stage {stage.name}",
                where=where,
                hint="write it under connectors.NAME.extra",
                param=key,
            )
    check_known(stage, FUSED_OPTIONS | KEYS, f"pipeline {stage.pipeline!r}", beside=IN_THE_EDGE)
    _report_idle(stage, [key for key in _ALWAYS_SO if key not in KEYS])
    if stage.architecture == _CODE2WAV and stage.config_overrides:
        warn(f"stage {stage.name}: hf_overrides has no effect: the decoder reads the config.json in {CODEC_FOLDER}")


def _advise(edge: ResolvedEdge) -> None:
    """Warn about options that fit each other badly (TT-15, TT-16), and say which ones change nothing."""
    where, stream = f"connectors.{edge.connector}.extra", edge.stream
    sizes, largest = stream.get("decode_cudagraph_batch_sizes"), stream.get("decode_batch_max_size")
    if sizes and largest is not None and max(sizes) != largest:
        warn(
            f"{where}: decode_batch_max_size is {largest}, but the largest of decode_cudagraph_batch_sizes is {max(sizes)}: "
            "set them alike"
        )
    advise_chunks(stream, where)
    if idle := [f"{key} ({WITHOUT_EFFECT[key]})" for key in stream if key in WITHOUT_EFFECT]:
        logger.info("%s: without effect here: %s", where, "; ".join(idle))


def _report_first_audio(stage: ResolvedStage, edge: ResolvedEdge) -> None:
    """Say once for each stage who delivers the first frame (TT-11: a fallback, not an error)."""
    if not edge.stream.get(_TALKER_FIRST):
        return
    if reasons := obstacles(stage):
        logger.info("stage %s: Code2Wav delivers the first audio too (%s): %s", stage.name, _TALKER_FIRST, "; ".join(reasons))
    else:
        logger.info("stage %s: its process delivers the first frame's audio (%s)", stage.name, _TALKER_FIRST)


def talker_runner(stage: ResolvedStage) -> RunnerEntry | None:
    """Return what runs a talker whose process makes audio, None where core's own runner of AR stages does."""
    from omni_core.builtin import AR

    if stage.pipeline == QWEN3_TTS_FUSED.model_type:
        return replace(AR, name="qwen3-tts-fused", target="omni_models_qwen.qwen3_tts.talker_runners:FusedRunner")
    wanted = any(edge.stream.get(_TALKER_FIRST) for edge in stage.outputs)
    if stage.pipeline == QWEN3_TTS.model_type and wanted and not obstacles(stage):
        return replace(AR, name="qwen3-tts-first", target="omni_models_qwen.qwen3_tts.talker_runners:FirstAudioRunner")
    return None
