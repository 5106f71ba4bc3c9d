"""The options of the edge from the talker to the codec: the keys of the connector's `extra` that are ours (TT-15, TT-16)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from omni_core.deploy.notes import warn
from omni_core.errors import ConfigError
from omni_core.modelkit.first_chunk import advise_cut
from omni_core.stage import ResolvedStage

_NUMBERS = {
    "codec_chunk_frames": 1,
    "codec_left_context_frames": 0,
    "ref_code_context_frames": 0,
    "initial_codec_chunk_frames": 0,
    "codec_chunk_min_frames": 1,
    "codec_chunk_safety_margin_ms": 0,
    "codec_chunk_ramp_divisor": 1,
    "codec_chunk_ramp_delta_min": 1,
    "decode_batch_max_size": 0,
    "max_inflight": 1,
    "ref_audio_artifact_cache_max_entries": 0,
    "connector_get_max_wait_first_chunk": 0,
    "connector_get_max_wait": 0,
}
"""Whole-number keys and the least value of each."""
TF32 = "decode_enable_tf32"
_SWITCHES = (
    "codec_streaming",
    "codec_chunk_adaptive",
    "talker_first_audio",
    TF32,
    "code_predictor_prefix_graphs",
    "code_predictor_kv_cache",
    "code_predictor_fused_sampling",
    "codec_time_major",
)
_SIZES = (
    "decode_cudagraph_capture_sizes",
    "decode_cudagraph_batch_sizes",
    "code_predictor_prefix_graph_buckets",
    "code_predictor_prefix_graph_seq_lens",
)
ADAPTIVE_KEYS = (
    "codec_chunk_min_frames",
    "codec_chunk_safety_margin_ms",
    "codec_chunk_ramp_divisor",
    "codec_chunk_ramp_delta_min",
)
KEYS = frozenset((*_NUMBERS, *_SWITCHES, *_SIZES, "codec_chunk_ramp", "connector_get_sleep_s"))
_POLLING = "chunks are announced as they come, so nothing polls for them"
_NO_GRAPHS = "the codec runs without captured graphs"
ALWAYS = "the code predictor always works so"
"""Why switches of the code predictor change nothing."""
WITHOUT_EFFECT: Mapping[str, str] = {
    "connector_get_sleep_s": _POLLING,
    "connector_get_max_wait_first_chunk": _POLLING,
    "connector_get_max_wait": _POLLING,
    "decode_cudagraph_batch_sizes": _NO_GRAPHS,
    "decode_cudagraph_capture_sizes": _NO_GRAPHS,
    "code_predictor_prefix_graphs": "the code predictor keeps its keys and values and never reads a prefix again",
    "code_predictor_prefix_graph_buckets": "there are no prefix graphs",
    "code_predictor_prefix_graph_seq_lens": "there are no prefix graphs",
    "code_predictor_kv_cache": ALWAYS,
    "code_predictor_fused_sampling": ALWAYS,
    "codec_time_major": "the codec has one layout",
}
"""Options that deploy files of other servers have and that change nothing here, and why. They are accepted and said once."""
REFUSED: Mapping[str, str] = {
    "decode_chunk_frames": "the decoder keeps its state and needs no windows; codec_chunk_frames is the size of a payload",
    "decode_left_context_frames": "the decoder keeps its state; for references there is ref_code_context_frames",
}
"""Options of a decoder without a state, and what to write instead."""
MIN_RAMP = 2
"""Sizes that a ramp has at least: one alone is no ramp."""


def ramp_sizes(value: Any) -> tuple[int, ...] | None:
    """Return the sizes of a `codec_chunk_ramp`: a list of whole numbers, or a string with commas between them.

    None means that there is no ramp: nothing is written, or what is written is not at least two whole numbers above 0.
    """
    if isinstance(value, str):
        texts = [part.strip() for part in value.split(",")]
        sizes: list[Any] = [int(text) if text.isascii() and text.isdecimal() else 0 for text in texts]
    else:
        sizes = list(value) if isinstance(value, (list, tuple)) else []
    usable = len(sizes) >= MIN_RAMP and all(_whole(size) and size > 0 for size in sizes)
    return tuple(sizes) if usable else None


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
        if key in REFUSED:
            raise ConfigError(f"{key!r} has no meaning here", where=where, hint=REFUSED[key])
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
        if key == "connector_get_sleep_s" and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise ConfigError(f"{key} must be a number of at least 0, not {value!r}", where=where)
        if key == "codec_chunk_ramp" and value is not None and ramp_sizes(value) is None:
            warn(f"{where}: codec_chunk_ramp is off: {value!r} is not at least {MIN_RAMP} whole numbers above 0")


def advise_chunks(stream: Mapping[str, Any], where: str) -> None:
    """Warn about sizes of payloads that fit each other badly (TT-15); `where` is what messages call their place."""
    steady = int(stream.get("codec_chunk_frames", 25))
    for key in ("initial_codec_chunk_frames", "codec_chunk_min_frames"):
        advise_cut(key, stream.get(key) or 0, steady, where)
    ramp = ramp_sizes(stream.get("codec_chunk_ramp"))
    if stream.get("codec_chunk_adaptive"):
        if ramp:
            warn(f"{where}: codec_chunk_ramp has no effect, because codec_chunk_adaptive beats it")
        return
    if ramp and ramp[-1] != steady:
        warn(f"{where}: codec_chunk_ramp ends with {ramp[-1]}, but goes on with codec_chunk_frames {steady}")
    if idle := [key for key in ADAPTIVE_KEYS if key in stream]:
        warn(f"{where}: {', '.join(idle)} without codec_chunk_adaptive: true changes nothing")


def advise_tf32(options: Mapping[str, Any], where: str, platform: str, dtype: str | None) -> None:
    """Warn where `decode_enable_tf32` changes nothing: it is about float32 products on CUDA (TT-16).

    Args:
        options: The decoder's options.
        where: What messages call their place.
        platform: Where the decoder computes.
        dtype: What it is asked to compute in; float32 where that is left to it.
    """
    if not options.get(TF32):
        return
    if platform not in ("cuda", "rocm"):
        warn(f"{where}: {TF32} has no effect on {platform}")
    elif (name := str(dtype or "auto").removeprefix("torch.")) not in ("auto", "float32", "float"):
        warn(f"{where}: {TF32} has no effect: the decoder computes in {name}, not in float32")


def _check_sizes(key: str, sizes: Any, where: str) -> None:
    if not (isinstance(sizes, (list, tuple)) and sizes and all(_whole(size) and size > 0 for size in sizes)):
        raise ConfigError(f"{key} must be a list of whole numbers above 0, not {sizes!r}", where=where)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
