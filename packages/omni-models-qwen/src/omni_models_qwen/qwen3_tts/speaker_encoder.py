"""The speaker encoder of Base checkpoints: an ECAPA-TDNN that turns a mel spectrogram into one vector for the voice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from omni_core.errors import ConfigError
from omni_core.modelkit.weights import TensorReader

_FFT, _HOP = 1024, 256
_MAX_HZ = 12000.0


@dataclass(frozen=True, kw_only=True)
class SpeakerEncoderConfig:
    """The encoder's sizes; fields have the names of `speaker_encoder_config`, whose defaults these are."""

    mel_dim: int = 128
    enc_dim: int = 1024
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = 24000

    @classmethod
    def read(cls, raw: Mapping[str, Any], *, where: str) -> SpeakerEncoderConfig:
        """Return the sizes in a `speaker_encoder_config`.

        Raises:
            ConfigError: The lists differ in length.
        """
        given: dict[str, Any] = {name: raw[name] for name in cls.__dataclass_fields__ if raw.get(name) is not None}
        tuples: dict[str, Any] = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        config = cls(**(given | tuples))
        lengths = {len(config.enc_channels), len(config.enc_kernel_sizes), len(config.enc_dilations)}
        if len(lengths) > 1:
            raise ConfigError(
                "enc_channels, enc_kernel_sizes and enc_dilations differ in length",
                where=where,
                hint="use the config.json that belongs to the weights",
            )
        return config


class SpeakerEncoder:
    """Compute a voice's embedding from audio."""

    def __init__(self, reader: TensorReader, config: SpeakerEncoderConfig) -> None:
        self.config = config
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self._spectrogram = MelSpectrogram(config.mel_dim, config.sample_rate)
        self._first = _Conv(reader, "blocks.0.conv", (config.mel_dim, channels[0], kernels[0]), dilations[0])
        self._blocks = [
            _SqueezeBlock(reader, f"blocks.{i}", (channels[i - 1], channels[i], kernels[i]), dilations[i], config)
            for i in range(1, len(channels) - 1)
        ]
        width = channels[-1]
        self._join = _Conv(reader, "mfa.conv", (sum(channels[1:-1]), width, kernels[-1]), dilations[-1])
        self._pool_in = _Conv(reader, "asp.tdnn.conv", (3 * width, config.enc_attention_channels, 1))
        self._pool_out = _Conv(reader, "asp.conv", (config.enc_attention_channels, width, 1))
        self._last = _Conv(reader, "fc", (2 * width, config.enc_dim, 1))
        reader.finish()

    @classmethod
    def load(cls, folder: Path, raw: Mapping[str, Any]) -> SpeakerEncoder:
        """Load the encoder of the checkpoint in `folder`, in float32.

        Args:
            folder: The checkpoint.
            raw: Its `speaker_encoder_config`.

        Raises:
            ConfigError: The weights are missing or damaged, or are not those of this model.
        """
        config = SpeakerEncoderConfig.read(raw, where=str(folder / "config.json"))
        return cls(TensorReader.of_folder(folder, "speaker_encoder."), config)

    def __call__(self, samples: Tensor) -> Tensor:
        """Return the embedding [enc_dim] of mono samples [n] at the encoder's rate."""
        x = F.relu(self._first(self._spectrogram(samples)[None]))
        found = []
        for block in self._blocks:
            x = block(x)
            found.append(x)
        return self._last(self._pooled(F.relu(self._join(torch.cat(found, 1)))))[0, :, 0]

    def _pooled(self, x: Tensor) -> Tensor:
        """Return mean and deviation of each channel, columns weighed by attention: [batch, 2 * channels, 1]."""
        even = torch.full_like(x, 1.0 / x.shape[2])
        context = torch.cat((x, *(part.expand_as(x) for part in _moments(x, even))), 1)
        weights = self._pool_out(F.relu(self._pool_in(context)).tanh()).softmax(2)
        return torch.cat(_moments(x, weights), 1)


class MelSpectrogram:
    """Compute log mel magnitudes: frames of 1024 samples, one every 256, filters up to 12 kHz."""

    def __init__(self, bands: int, sample_rate: int) -> None:
        from transformers.audio_utils import mel_filter_bank  # transformers comes with vLLM and takes seconds to import

        filters = mel_filter_bank(
            _FFT // 2 + 1, bands, 0.0, _MAX_HZ, sample_rate, norm="slaney", mel_scale="slaney", triangularize_in_mel_space=False
        )
        self._filters = torch.from_numpy(filters.T).to(torch.float32)
        self._window = torch.hann_window(_FFT)

    def __call__(self, samples: Tensor) -> Tensor:
        """Return [bands, frames] of mono samples [n]."""
        side = (_FFT - _HOP) // 2
        padded = F.pad(samples[None], (side, side), mode="reflect")
        spectrum = torch.stft(padded, _FFT, _HOP, window=self._window, center=False, return_complex=True)
        power: Tensor = torch.view_as_real(spectrum[0]).square().sum(-1)
        return (self._filters @ (power + 1e-9).sqrt()).clamp(min=1e-5).log()


class _Conv:
    """A convolution that keeps the length, its input mirrored at both ends."""

    def __init__(self, reader: TensorReader, name: str, sizes: tuple[int, int, int], dilation: int = 1) -> None:
        inputs, outputs, kernel = sizes
        self.weight = reader.take(f"{name}.weight", outputs, inputs, kernel)
        self.bias = reader.take(f"{name}.bias", outputs)
        self.dilation = dilation
        reach = (kernel - 1) * dilation
        self.padding = (reach // 2, reach - reach // 2)

    def __call__(self, x: Tensor) -> Tensor:
        if any(self.padding):
            x = F.pad(x, self.padding, mode="reflect")
        return F.conv1d(x, self.weight, self.bias, dilation=self.dilation)


class _SqueezeBlock:
    """Convolutions over slices of the channels, each adding to the next, then a gain for each channel."""

    def __init__(
        self, reader: TensorReader, name: str, sizes: tuple[int, int, int], dilation: int, config: SpeakerEncoderConfig
    ) -> None:
        inputs, outputs, kernel = sizes
        self.scale = config.enc_res2net_scale
        part = outputs // self.scale
        self.before = _Conv(reader, f"{name}.tdnn1.conv", (inputs, outputs, 1))
        self.parts = [
            _Conv(reader, f"{name}.res2net_block.blocks.{step}.conv", (part, part, kernel), dilation)
            for step in range(self.scale - 1)
        ]
        self.after = _Conv(reader, f"{name}.tdnn2.conv", (outputs, outputs, 1))
        self.squeeze = _Conv(reader, f"{name}.se_block.conv1", (outputs, config.enc_se_channels, 1))
        self.excite = _Conv(reader, f"{name}.se_block.conv2", (config.enc_se_channels, outputs, 1))

    def __call__(self, x: Tensor) -> Tensor:
        first, *rest = F.relu(self.before(x)).chunk(self.scale, 1)
        done = [first]
        for index, (conv, part) in enumerate(zip(self.parts, rest, strict=True)):
            done.append(F.relu(conv(part + done[-1] if index else part)))
        y = F.relu(self.after(torch.cat(done, 1)))
        gain = self.excite(F.relu(self.squeeze(y.mean(2, keepdim=True)))).sigmoid()
        return x + y * gain


def _moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean and deviation [batch, channels, 1] over columns."""
    mean = (weights * x).sum(2, keepdim=True)
    return mean, (weights * (x - mean).square()).sum(2, keepdim=True).clamp(min=1e-12).sqrt()
