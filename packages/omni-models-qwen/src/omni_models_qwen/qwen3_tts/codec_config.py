"""Sizes of the 12 Hz codec, read from `speech_tokenizer/config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CodecDecoderConfig:
    """The decoder's sizes; fields have the names of the checkpoint's `decoder_config`."""

    codebook_size: int
    codebook_dim: int
    """Width of a frame's vector after the quantizer's output projection; a codebook's rows have half of it."""
    num_quantizers: int
    num_semantic_quantizers: int
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sliding_window: int
    """Frames a frame attends to, itself included."""
    rope_theta: float
    rms_norm_eps: float
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]
    decoder_dim: int
    sample_rate: int
    channels: int = 1

    @property
    def samples_per_frame(self) -> int:
        """Audio samples that one frame of codes becomes."""
        return math.prod(self.upsampling_ratios) * math.prod(self.upsample_rates)

    @classmethod
    def read(cls, raw: Mapping[str, Any], *, where: str) -> CodecDecoderConfig:
        """Return the sizes in a codec's config.json.

        Raises:
            ConfigError: A key is missing, has another type, or the sizes contradict each other.
        """
        decoder = raw.get("decoder_config")
        if not isinstance(decoder, Mapping):
            raise ConfigError("the codec's config.json has no decoder_config", where=where, hint=_HINT)
        heads = _number(decoder, "num_attention_heads", where)
        hidden = _number(decoder, "hidden_size", where)
        config = cls(
            codebook_size=_number(decoder, "codebook_size", where),
            codebook_dim=_number(decoder, "codebook_dim", where),
            num_quantizers=_number(decoder, "num_quantizers", where),
            num_semantic_quantizers=_number(decoder, "num_semantic_quantizers", where, 1),
            latent_dim=_number(decoder, "latent_dim", where),
            hidden_size=hidden,
            intermediate_size=_number(decoder, "intermediate_size", where),
            num_hidden_layers=_number(decoder, "num_hidden_layers", where),
            num_attention_heads=heads,
            num_key_value_heads=_number(decoder, "num_key_value_heads", where, heads),
            head_dim=_number(decoder, "head_dim", where, hidden // heads),
            sliding_window=_number(decoder, "sliding_window", where, 72),
            rope_theta=_real(decoder, "rope_theta", where, 10000.0),
            rms_norm_eps=_real(decoder, "rms_norm_eps", where, 1e-5),
            upsampling_ratios=_numbers(decoder, "upsampling_ratios", where),
            upsample_rates=_numbers(decoder, "upsample_rates", where),
            decoder_dim=_number(decoder, "decoder_dim", where),
            sample_rate=_number(raw, "output_sample_rate", where, 24000),
        )
        declared = _number(raw, "decode_upsample_rate", where, config.samples_per_frame)
        if declared != config.samples_per_frame:
            raise ConfigError(
                f"decode_upsample_rate is {declared}, but the ratios multiply to {config.samples_per_frame}",
                where=where,
                hint=_HINT,
            )
        return config


_HINT = "use the config.json that belongs to the codec's weights"


def _number(raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{key} must be a positive whole number, not {value!r}", where=where, hint=_HINT)
    return value


def _real(raw: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = default if raw.get(key) is None else raw[key]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ConfigError(f"{key} must be a positive number, not {value!r}", where=where, hint=_HINT)
    return float(value)


def _numbers(raw: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    value = raw.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, int) and item > 0 for item in value):
        raise ConfigError(f"{key} must be a list of positive whole numbers, not {value!r}", where=where, hint=_HINT)
    return tuple(value)
