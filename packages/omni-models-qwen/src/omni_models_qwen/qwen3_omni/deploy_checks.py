"""What a deployment of Qwen3-Omni must fulfil beyond core's rules; checked in the main process before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_omni.chat import MODEL
from omni_models_qwen.qwen3_tts.stream import advise_chunks, check_options
from omni_models_qwen.talking.options import IN_THE_EDGE, check_known, report_overrides

KEYS = frozenset(
    {
        "codec_streaming",
        "codec_chunk_frames",
        "codec_chunk_ramp",
        "codec_left_context_frames",
        "decode_batch_max_size",
        "decode_enable_tf32",
        "initial_codec_chunk_frames",
        "max_inflight",
    }
)
"""Options of the edges."""


def check_stages(stages: Sequence[ResolvedStage]) -> None:
    """Check the options of every edge, and that no stage has some.

    Raises:
        ConfigError: A key is not known or a value cannot be used (E34); the message names the connector.
    """
    for stage in stages:
        for edge in stage.outputs:
            where = f"connectors.{edge.connector}.extra"
            check_options(edge.stream, where, keys=KEYS, model=MODEL)
            advise_chunks(edge.stream, where)
            if edge.stream.get("codec_left_context_frames") == 0:
                raise ConfigError(
                    "codec_left_context_frames 0 would leave a gap before each window: the end of a frame needs the next one",
                    where=where,
                    hint="set it to at least 1; 25 is usual",
                )
        check_known(stage, (), f"pipeline {stage.pipeline!r}", beside=IN_THE_EDGE)
    report_overrides(stages)
