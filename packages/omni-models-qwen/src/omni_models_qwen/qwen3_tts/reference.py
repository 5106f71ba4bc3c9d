"""Reading a reference voice: resampling, codec codes and speaker embedding. Runs in the talker's stage process, on its CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import read_json
from omni_core.modelkit.reference import check_samples, resample
from omni_models_qwen.qwen3_tts.codec_encoder import CodecEncoder
from omni_models_qwen.qwen3_tts.pipeline import CODEC_FOLDER
from omni_models_qwen.qwen3_tts.speaker_encoder import SpeakerEncoder


@dataclass(frozen=True)
class ReferenceVoice:
    """A voice as the talker takes it."""

    codes: NDArray[np.int64] | None
    """The reference itself, [frames, 16]; None when only the embedding was asked for."""
    embedding: NDArray[np.float32]
    """The voice, [enc_dim]."""


class ReferenceEncoder:
    """Turn reference audio into a `ReferenceVoice`."""

    def __init__(self, codec: CodecEncoder, speaker: SpeakerEncoder) -> None:
        self._codec = codec
        self._speaker = speaker

    @classmethod
    def load(cls, folder: Path | str) -> ReferenceEncoder:
        """Load the codec's encoder and the speaker encoder of a Base checkpoint.

        Raises:
            ConfigError: The checkpoint has no speaker encoder, or a file of it is missing or damaged.
        """
        folder = Path(folder)
        path = folder / "config.json"
        speaker = read_json(path).get("speaker_encoder_config")
        if not isinstance(speaker, dict):
            raise ConfigError(
                "the checkpoint has no speaker encoder", where=str(path), hint="use a Base checkpoint to clone voices"
            )
        return cls(CodecEncoder.load(folder / CODEC_FOLDER), SpeakerEncoder.load(folder, speaker))

    @torch.inference_mode()
    def encode(self, samples: NDArray[np.float32], sample_rate: int, *, with_codes: bool) -> ReferenceVoice:
        """Return the voice of a recording.

        Args:
            samples: Mono samples [n] in [-1, 1].
            sample_rate: Their rate in Hz.
            with_codes: Whether the talker continues the recording; if not, only its voice is taken.

        Raises:
            RequestError: The samples are not mono, not finite, too short or too long.
        """
        samples = check_samples(samples, sample_rate, mono=True)
        codes = None
        if with_codes:
            audio = torch.from_numpy(resample(samples, sample_rate, self._codec.sample_rate))
            codes = self._codec(audio).to(torch.int64).numpy()
        audio = torch.from_numpy(resample(samples, sample_rate, self._speaker.config.sample_rate))
        return ReferenceVoice(codes, self._speaker(audio).numpy())
