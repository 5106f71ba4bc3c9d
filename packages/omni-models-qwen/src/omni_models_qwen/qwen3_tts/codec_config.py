"""Sizes of the 12 Hz codec, read from `speech_tokenizer/config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_core.modelkit.config_reader import ConfigReader


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
        read = ConfigReader(raw, where, "Qwen3-TTS")
        decoder = read.section("decoder_config")
        heads = decoder.count("num_attention_heads")
        hidden = decoder.count("hidden_size")
        config = cls(
            codebook_size=decoder.count("codebook_size"),
            codebook_dim=decoder.count("codebook_dim"),
            num_quantizers=decoder.count("num_quantizers"),
            num_semantic_quantizers=decoder.count("num_semantic_quantizers", 1),
            latent_dim=decoder.count("latent_dim"),
            hidden_size=hidden,
            intermediate_size=decoder.count("intermediate_size"),
            num_hidden_layers=decoder.count("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=decoder.count("num_key_value_heads", heads),
            head_dim=decoder.count("head_dim", hidden // heads),
            sliding_window=decoder.count("sliding_window", 72),
            rope_theta=decoder.positive("rope_theta", 10000.0),
            rms_norm_eps=decoder.positive("rms_norm_eps", 1e-5),
            upsampling_ratios=_counts(decoder, "upsampling_ratios"),
            upsample_rates=_counts(decoder, "upsample_rates"),
            decoder_dim=decoder.count("decoder_dim"),
            sample_rate=read.count("output_sample_rate", 24000),
        )
        declared = read.count("decode_upsample_rate", config.samples_per_frame)
        if declared != config.samples_per_frame:
            raise read.fault(f"decode_upsample_rate is {declared}, but the ratios multiply to {config.samples_per_frame}")
        return config


def _counts(read: ConfigReader, name: str) -> tuple[int, ...]:
    found = read.take(name, list)
    if not found or not all(isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in found):
        raise read.fault(f"{name} must be a list of positive whole numbers, not {found!r}")
    return tuple(found)
