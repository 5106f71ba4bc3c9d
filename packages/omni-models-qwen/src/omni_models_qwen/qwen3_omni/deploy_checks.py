"""What a deployment of Qwen3-Omni must fulfil beyond core's rules; checked in the main process before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.stream import check_options

KEYS = frozenset(
    {
        "codec_streaming",
        "codec_chunk_frames",
        "codec_chunk_ramp",
        "codec_left_context_frames",
        "initial_codec_chunk_frames",
        "max_inflight",
    }
)
"""Options of the edges."""


def check_stages(stages: Sequence[ResolvedStage]) -> None:
    """Check the options of every edge.

    Raises:
        ConfigError: A key is not known or a value cannot be used (E34); the message names the connector.
    """
    for stage in stages:
        for edge in stage.outputs:
            check_options(edge.stream, f"connectors.{edge.connector}.extra", keys=KEYS, model="Qwen3-Omni")
