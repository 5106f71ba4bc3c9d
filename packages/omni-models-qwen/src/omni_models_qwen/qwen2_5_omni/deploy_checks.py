"""What a deployment of Qwen2.5-Omni must fulfil beyond core's rules; checked in the main process before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.stream import check_options
from omni_models_qwen.talking.options import IN_THE_EDGE, check_known, own_options, place_of, report_overrides

logger = logging.getLogger(__name__)

KEYS = frozenset({"decode_enable_tf32", "max_inflight"})
"""Options of the edges."""
CODEC_OPENING = "codec_opening"
"""Option of the talker's stage: whether its prompt has codec pad and bos, whatever wrote the checkpoint."""
_EXACT = ("auto", "float", "float32")


def check_stages(stages: Sequence[ResolvedStage]) -> None:
    """Check the options of every edge and stage, and say where the decoder's precision is not what is written.

    Raises:
        ConfigError: A key is not known or a value cannot be used (E34); the message names its place.
    """
    for stage in stages:
        for edge in stage.outputs:
            check_options(edge.stream, f"connectors.{edge.connector}.extra", keys=KEYS, model="Qwen2.5-Omni")
        _check_own(stage)
    report_overrides(stages)
    dtype = str(stages[-1].engine_args.get("dtype") or "auto").removeprefix("torch.")
    if dtype not in _EXACT:
        logger.info("stage %s: it computes in float32, not in %s: what is heard is made there", stages[-1].name, dtype)


def _check_own(stage: ResolvedStage) -> None:
    is_talker = stage.topology.model_stage == "talker"
    check_known(stage, (CODEC_OPENING,) if is_talker else (), f"the {stage.topology.model_stage}", beside=IN_THE_EDGE)
    value = own_options(stage).get(CODEC_OPENING)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(
            f"{CODEC_OPENING} must be true or false, not {value!r}", where=place_of(stage, CODEC_OPENING), param=CODEC_OPENING
        )
