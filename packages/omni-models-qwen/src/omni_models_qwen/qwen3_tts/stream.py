"""The chunk policy of the edge from the talker to the codec: the keys of the connector's `extra` that are ours (TT-15)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedStage

_NUMBERS = {
    "codec_chunk_frames": 1,
    "codec_left_context_frames": 0,
    "ref_code_context_frames": 0,
    "initial_codec_chunk_frames": 0,
    "decode_batch_max_size": 0,
    "max_inflight": 1,
    "ref_audio_artifact_cache_max_entries": 0,
    "connector_get_max_wait_first_chunk": 0,
    "connector_get_max_wait": 0,
}
"""Whole-number keys and the least value of each."""
_SWITCHES = (
    "codec_streaming",
    "talker_first_audio",
    "decode_enable_tf32",
    "code_predictor_prefix_graphs",
    "code_predictor_kv_cache",
    "code_predictor_fused_sampling",
    "codec_time_major",
)
_SIZES = (
    "codec_chunk_ramp",
    "decode_cudagraph_batch_sizes",
    "code_predictor_prefix_graph_buckets",
    "code_predictor_prefix_graph_seq_lens",
)
KEYS = frozenset((*_NUMBERS, *_SWITCHES, *_SIZES, "connector_get_sleep_s"))


@dataclass(frozen=True)
class ChunkPolicy:
    """How many frames go into each payload, and how much of a reference goes along."""

    steady: int = 25
    first: tuple[int, ...] = ()
    """Sizes of the first payloads; those after them have `steady` frames."""
    ref_context: int = 25
    """Reference frames that precede the first payload; longer references keep their last ones (TT-08)."""

    @classmethod
    def read(cls, options: Mapping[str, Any], initial: int | None = None) -> ChunkPolicy:
        """Return the policy of an edge.

        Args:
            options: The edge's stream options, checked by `check_options`.
            initial: The request's own `initial_codec_chunk_frames`, which beats the configured one but not a ramp.
        """
        steady = int(options.get("codec_chunk_frames", 25))
        ramp = options.get("codec_chunk_ramp")
        if initial is None:
            initial = int(options.get("initial_codec_chunk_frames") or 0)
        first = ramp_sizes(ramp) if ramp else ((min(initial, steady),) if initial else ())
        context = options.get("ref_code_context_frames", options.get("codec_left_context_frames", 25))
        return cls(steady=steady, first=first, ref_context=int(context))

    def size(self, sent: int) -> int:
        """Return how many frames the payload after `sent` others waits for."""
        return self.first[sent] if sent < len(self.first) else self.steady


def ramp_sizes(value: Any) -> tuple[int, ...]:
    """Return the sizes of a `codec_chunk_ramp`: a list of whole numbers, or a string with commas between them (TT-15).

    Raises:
        ValueError: A part of the string is no whole number.
    """
    return tuple(int(size) for size in (value.split(",") if isinstance(value, str) else value))


def check_edges(stages: Sequence[ResolvedStage]) -> None:
    """Check the stream options of every edge.

    Raises:
        ConfigError: A key is not known or a value cannot be used; the message names the connector.
    """
    for stage in stages:
        for edge in stage.outputs:
            check_options(edge.stream, f"connectors.{edge.connector}.extra")


def check_options(options: Mapping[str, Any], where: str, *, keys: Collection[str] = KEYS, model: str = "Qwen3-TTS") -> None:
    """Check the stream options of one edge; raise ConfigError at the first that cannot be used.

    Args:
        options: The options.
        where: What messages call their place.
        keys: The options that the model has.
        model: What messages call the model.
    """
    for key, value in options.items():
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(sorted(keys))}"
            raise ConfigError(f"{key!r} is not an option of {model} or of the connector", where=where, hint=hint)
        if key in _NUMBERS and not (_whole(value) and value >= _NUMBERS[key]):
            raise ConfigError(f"{key} must be a whole number of at least {_NUMBERS[key]}, not {value!r}", where=where)
        if key in _SWITCHES and not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false, not {value!r}", where=where)
        if key in _SIZES:
            _check_sizes(key, value, where)


def _check_sizes(key: str, value: Any, where: str) -> None:
    sizes = value
    if key == "codec_chunk_ramp" and isinstance(value, str):
        try:
            sizes = ramp_sizes(value)
        except ValueError:
            sizes = ()
    if not (isinstance(sizes, (list, tuple)) and sizes and all(_whole(size) and size > 0 for size in sizes)):
        raise ConfigError(f"{key} must be a list of whole numbers above 0, not {value!r}", where=where)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
