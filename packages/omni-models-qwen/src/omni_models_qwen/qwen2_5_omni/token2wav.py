"""The Code2Wav stage of Qwen2.5-Omni: a reply's codes become its audio, whole. Runs in the stage's own process.

Both models are transformers': one turns noise into a mel spectrogram under the guidance of the codes and the voice, the
other, BigVGAN, turns that into sound. They compute in float32, which is what they were made for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.initialization import no_init_weights
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omni_core.errors import RequestError
from omni_core.modelkit.config_reader import ConfigReader
from omni_core.modelkit.history import as_tensor
from omni_core.payload import Payload
from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen2_5_omni.checkpoint import MODEL
from omni_models_qwen.qwen2_5_omni.flow import denoise
from omni_models_qwen.qwen2_5_omni.voices import Voice, Voices
from omni_models_qwen.talking.decoding import TransformersStage, decoder_device, filled


@dataclass
class Speaking:
    """What a request remembers."""

    generator: torch.Generator
    """Where its noise comes from: the request's `seed`, or chance."""


class Qwen2_5OmniToken2Wav(TransformersStage):
    """Decode whole replies.

    A payload has `codes` [n, 1], the `voice` they are for, and optionally the `noise` [frames, mels] to start from, where
    each code makes two frames of the mel spectrogram. Without it the noise is drawn from the request's seed.

    Args:
        model: transformers' model, loaded.
        voices: The checkpoint's voices.
    """

    def __init__(self, model: Any, voices: Voices) -> None:
        super().__init__(model)
        self._voices = voices

    @classmethod
    def load(cls, stage: ResolvedStage) -> Qwen2_5OmniToken2Wav:
        """Load both models and the voices from the checkpoint.

        Raises:
            ConfigError: A file is missing or damaged, or its tensors are not this model's.
        """
        folder = Path(stage.model)
        return cls(_load_model(folder, decoder_device(stage)), Voices.read(folder))

    def reload(self, stage: ResolvedStage) -> None:
        """Load the models and voices again.

        Raises:
            ConfigError: As `load`.
        """
        again = type(self).load(stage)
        self.decoder, self._voices = again.decoder, again._voices

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> Speaking:
        """Return the state of a request, with its own source of noise."""
        generator = torch.Generator()
        seed = sampling.get("seed")
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(int(seed))
        return Speaking(generator)

    @torch.inference_mode()
    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return each chunk's `audio` float32 [samples, 1] and, to be looked at, its `codes` int32 [n, 1].

        Raises:
            RequestError: Codes are not [n, 1] whole numbers that the decoder knows, there is no such voice, or the noise has
                another shape.
        """
        ready = [self._checked(chunk) for chunk in chunks]
        return [
            {"audio": self._decode(codes, voice, noise, chunk.state), "codes": codes.astype(np.int32)}
            for chunk, (codes, voice, noise) in zip(chunks, ready, strict=True)
        ]

    def _decode(
        self, codes: np.ndarray[Any, Any], voice: Voice, noise: Tensor | None, state: Speaking
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        if not len(codes):
            return np.zeros((0, self.channels), np.float32)
        if noise is None:
            noise = torch.randn(self._noise_shape(codes), generator=state.generator)
        packed, conditioning, mel, start = (
            value.to(self.decoder.device)
            for value in (torch.from_numpy(codes[None, :, 0]), voice.conditioning, voice.reference_mel, noise[None])
        )
        spectrogram = denoise(self.model.code2wav_dit_model, packed, conditioning, mel, start)
        wave: Tensor = self.model.code2wav_bigvgan_model(spectrogram)
        return wave.reshape(-1, self.channels).to("cpu", torch.float32).contiguous().numpy()

    def _noise_shape(self, codes: np.ndarray[Any, Any]) -> tuple[int, int]:
        transformer = self.model.code2wav_dit_model
        return len(codes) * int(transformer.repeats), int(transformer.mel_dim)

    def _checked(self, chunk: LightChunk) -> tuple[np.ndarray[Any, Any], Voice, Tensor | None]:
        where, payload = f"request {chunk.request_id}", chunk.payload
        config = self.model.code2wav_dit_model.config
        codes = self.checked_codes(chunk, "codes", books=1, size=config.num_embeds)
        most = config.max_position_embeddings // config.repeats
        if len(codes) > most:
            raise RequestError(
                f"{len(codes)} codes are more than the {most} the decoder takes at once",
                where=where,
                hint=f"limit the talker's max_tokens to {most}",
            )
        voice = self._voices.find(payload.get("voice"))
        if voice is None:
            hint = f"choose one of {', '.join(self._voices.names)}"
            raise RequestError(f"there is no voice {payload['voice']!r}", where=where, param="voice", hint=hint)
        return codes, voice, self._noise(payload, codes, where)

    def _noise(self, payload: Payload, codes: np.ndarray[Any, Any], where: str) -> Tensor | None:
        if payload.get("noise") is None:
            return None
        noise = as_tensor(payload["noise"]).to(torch.float32)
        if tuple(noise.shape) != self._noise_shape(codes):
            raise RequestError(
                f"noise has the shape {list(noise.shape)}, not {list(self._noise_shape(codes))}",
                where=where,
                hint="send noise for the frames of these codes, or none",
            )
        return noise


def _load_model(folder: Path, device: str) -> Any:
    """Return transformers' model with a checkpoint's weights."""
    raw = ConfigReader.of_folder(folder, MODEL).section("token2wav_config").raw
    with no_init_weights():
        model = Qwen2_5OmniToken2WavModel(Qwen2_5OmniToken2WavConfig(**raw, attn_implementation="sdpa"))
    return filled(model, folder, "token2wav.", device=device, dtype=torch.float32)
