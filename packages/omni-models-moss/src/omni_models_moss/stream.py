"""The chunk policy of the edge from the talker to the codec: the keys of the connector's `extra` that are ours (MO-02)."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_core.deploy.notes import warn
from omni_core.errors import ConfigError
from omni_core.modelkit.first_chunk import advise_cut, cut_request
from omni_core.stage import ResolvedStage
from omni_models_moss.pipeline import MOSS_TTS_LOCAL

logger = logging.getLogger(__name__)

_ROWS = "codec_dispatch_max_rows"
_WAIT = "codec_dispatch_max_wait_ms"
_NUMBERS = {
    "codec_chunk_frames": 1,
    "codec_left_context_frames": 0,
    "initial_codec_chunk_frames": 0,
    _ROWS: 1,
    "max_inflight": 1,
}
"""Whole-number keys and the least value of each."""
_SWITCHES = ("codec_streaming", "talker_first_audio")
KEYS = frozenset((*_NUMBERS, *_SWITCHES, _WAIT))


@dataclass(frozen=True)
class ChunkPolicy:
    """How many frames go into each payload."""

    steady: int = 15
    initial: int = 1
    """Frames of the first payload."""
    streams: bool = True
    """Whether payloads leave before the talker has ended."""

    @classmethod
    def read(cls, options: Mapping[str, Any], initial: int | None = None) -> ChunkPolicy:
        """Return the policy of an edge.

        Args:
            options: What `check_options` has accepted.
            initial: Frames of the first payload as the request wants them; 0 means a steady one, None what the options say.
                More than a steady one has is cut to it, and said once (TT-15).
        """
        steady = int(options.get("codec_chunk_frames", cls.steady))
        if initial is None:
            initial = min(int(options.get("initial_codec_chunk_frames", cls.initial)), steady)
        else:
            initial = cut_request(int(initial), steady)
        return cls(steady=steady, initial=initial or steady, streams=bool(options.get("codec_streaming", True)))

    def is_due(self, frames: int, sent: int) -> bool:
        """Return whether so many frames make the payload after `sent` others, although the talker goes on."""
        return self.streams and frames >= (self.steady if sent else self.initial)


def check_edges(stages: Sequence[ResolvedStage]) -> None:
    """Check the options of every edge, and say which have no effect or another one than it seems.

    Raises:
        ConfigError: A key is not known or a value cannot be used (E34); the message names the connector.
    """
    for stage in stages:
        for edge in stage.outputs:
            where, options = f"connectors.{edge.connector}.extra", edge.stream
            check_options(options, where)
            if options.get("codec_left_context_frames"):
                warn(
                    f"{where}: codec_left_context_frames has no effect: the codec keeps a state instead of hearing frames again"
                )
            if len(alone := [key for key in (_ROWS, _WAIT) if key in options]) == 1:
                warn(f"{where}: {alone[0]} alone has no effect: a batch waits for {_ROWS} rows, and {_WAIT} at most")
            steady = options.get("codec_chunk_frames", ChunkPolicy.steady)
            advise_cut("initial_codec_chunk_frames", options.get("initial_codec_chunk_frames", 0), steady, where)


def check_first_audio(stages: Sequence[ResolvedStage]) -> None:
    """Say once for each edge what `talker_first_audio` does (MO-02, MO-04): nothing in this version.

    The default file of MOSS-TTS Local asks for it on CUDA, as the contract says; there the codec delivers the first piece, too,
    which is a fallback and no error. Elsewhere somebody has asked for what cannot be.

    Raises:
        ConfigError: The pipeline is another than Local's, which has no such path (MO-05).
    """
    for stage in stages:
        for edge in stage.outputs:
            if not edge.stream.get("talker_first_audio"):
                continue
            if stage.pipeline != MOSS_TTS_LOCAL.model_type:
                raise ConfigError(
                    f"talker_first_audio is for MOSS-TTS Local on CUDA; the talker of {stage.pipeline} holds no decoder",
                    where=f"connectors.{edge.connector}.extra",
                    hint="leave it out: the codec delivers the first piece",
                    param="talker_first_audio",
                )
            if stage.platform != "cuda":
                warn(f"stage {stage.name}: talker_first_audio has no effect on {stage.platform}: it needs CUDA kernels")
            else:
                logger.info("stage %s: talker_first_audio has no effect here: this talker holds no decoder", stage.name)


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Check the options of one edge; raise ConfigError at the first that cannot be used."""
    for key, value in options.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(sorted(KEYS))}"
            raise ConfigError(f"{key!r} is not an option of MOSS-TTS or of the connector", where=where, hint=hint, param=key)
        if fault := _fault(key, value):
            raise ConfigError(f"{key} must be {fault}, not {value!r}", where=where, hint="correct the value", param=key)


def _fault(key: str, value: Any) -> str | None:
    """Return what a value must be and is not."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if key in _SWITCHES:
        return None if isinstance(value, bool) else "true or false"
    if key == _WAIT:
        return None if is_number and value >= 0 else "a number of milliseconds of at least 0"
    least = _NUMBERS[key]
    return None if is_number and isinstance(value, int) and value >= least else f"a whole number of at least {least}"
