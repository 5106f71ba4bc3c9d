"""Reading a reference voice: rate, channels, loudness, then codes. Runs in the talker's stage process, on its CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omni_core.modelkit.reference import check_samples, resample
from omni_core.stage import ResolvedStage
from omni_models_moss.codec.encoder import CodecEncoder
from omni_models_moss.codec.location import find_codec

_LOUDNESS_DB = -20.0
"""Mean power, in dB of full scale, that the talker has learned to hear."""
_MOST_GAIN_DB = 3.0
_SILENCE = 1e-9
"""Power below which there is no loudness to speak of."""


class ReferenceEncoder:
    """Turn reference audio into frames of codes.

    Args:
        codec: The codec's encoder.
        levels: How many codebooks the talker uses; None for all.
    """

    def __init__(self, codec: CodecEncoder, levels: int | None = None) -> None:
        self._codec = codec
        self._levels = levels

    @classmethod
    def load(cls, source: Path | str | ResolvedStage, levels: int | None = None) -> ReferenceEncoder:
        """Load the encoder of a codec's folder, or of the codec that a stage needs (see `codec.location`).

        Raises:
            ConfigError: There is no codec, or a file of it is missing or damaged.
            DependencyError: The codec's repository cannot be fetched.
        """
        folder = find_codec(source) if isinstance(source, ResolvedStage) else Path(source)
        return cls(CodecEncoder.load(folder), levels)

    @torch.inference_mode()
    def encode(self, samples: NDArray[Any], sample_rate: int) -> NDArray[np.int64]:
        """Return the codes [frames, levels] of a recording.

        Args:
            samples: Float samples [n], or [n, channels], in [-1, 1]. More channels than the codec has become their mean.
            sample_rate: Their rate in Hz.

        Raises:
            RequestError: The samples are not floats, not finite, too short or too long.
        """
        config = self._codec.config
        checked = check_samples(samples, sample_rate, mono=False)
        audio = _to_channels(resample(checked, sample_rate, config.sample_rate), config.channels)
        codes: NDArray[np.int64] = self._codec(torch.from_numpy(_normalized(audio)), self._levels).numpy()
        return codes


def _to_channels(samples: NDArray[np.float32], channels: int) -> NDArray[np.float32]:
    if samples.shape[1] == channels:
        return samples
    return np.repeat(samples.mean(axis=1, keepdims=True), channels, axis=1)


def _normalized(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the samples with a mean power nearer to -20 dB of full scale, by 3 dB at most."""
    power_db = 10 * np.log10(float(np.mean(np.square(samples), dtype=np.float64)) + _SILENCE)
    gain_db = float(np.clip(_LOUDNESS_DB - power_db, -_MOST_GAIN_DB, _MOST_GAIN_DB))
    return np.ascontiguousarray(samples * np.float32(10 ** (gain_db / 20)))
