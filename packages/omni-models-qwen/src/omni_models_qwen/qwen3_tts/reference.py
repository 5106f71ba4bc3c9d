"""Reading a reference voice: resampling, codec codes and speaker embedding. Runs in the talker's stage process, on its CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from omni_core.errors import ConfigError, RequestError
from omni_core.modelkit.config_reader import read_json
from omni_models_qwen.qwen3_tts.codec_encoder import CodecEncoder
from omni_models_qwen.qwen3_tts.speaker_encoder import SpeakerEncoder

CODEC_FOLDER = "speech_tokenizer"
MIN_SECONDS = 1.0
MAX_SECONDS = 30.0


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
        samples = _checked(samples, sample_rate)
        codes = None
        if with_codes:
            audio = torch.from_numpy(_resampled(samples, sample_rate, self._codec.sample_rate))
            codes = self._codec(audio).to(torch.int64).numpy()
        audio = torch.from_numpy(_resampled(samples, sample_rate, self._speaker.config.sample_rate))
        return ReferenceVoice(codes, self._speaker(audio).numpy())


def _checked(samples: NDArray[Any], sample_rate: int) -> NDArray[np.float32]:
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise RequestError(
            f"reference audio must be mono floats [n], not {samples.dtype} {list(samples.shape)}", param="ref_audio"
        )
    if sample_rate <= 0:
        raise RequestError(f"reference audio has the sample rate {sample_rate}", param="ref_audio")
    seconds = len(samples) / sample_rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise RequestError(
            f"reference audio is {seconds:.2f} s long",
            param="ref_audio",
            hint=f"send {MIN_SECONDS:g} to {MAX_SECONDS:g} seconds of speech",
        )
    if not np.isfinite(samples).all():
        raise RequestError("reference audio has samples that are not finite", param="ref_audio", hint="send another file")
    return samples.astype(np.float32)  # always a copy: what a payload carries may be read-only


def _resampled(samples: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """Return `samples` at the rate `wanted`, exactly ceil(n * wanted / rate) of them."""
    if rate == wanted:
        return samples
    size = -(-len(samples) * wanted // rate)
    made = soxr.resample(samples, rate, wanted, quality="HQ")
    return np.ascontiguousarray(np.pad(made[:size], (0, max(size - len(made), 0))), dtype=np.float32)
