"""The decoder of the 12 Hz codec: frames of 16 codes become 24 kHz audio, in chunks of any size.

    codes -> tables -> pre_conv -> transformer -> two doublings of the rate -> four blocks of convolutions -> audio

The result of a sequence of chunks is that of one decode of all frames: every layer is causal and remembers exactly what it
looks back to (`codec_flow`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from omni_core.modelkit.config_reader import read_json
from omni_core.modelkit.weights import TensorReader
from omni_models_qwen.qwen3_tts.codec_config import CodecDecoderConfig
from omni_models_qwen.qwen3_tts.codec_convolutions import CausalConv, CausalUpsample, ConvNextBlock, DecoderBlock, SnakeBeta
from omni_models_qwen.qwen3_tts.codec_flow import CodecState, Flow, MemoryPlan
from omni_models_qwen.qwen3_tts.codec_quantizer import CodebookTables
from omni_models_qwen.qwen3_tts.codec_transformer import WindowTransformer

_PIECES = {"cpu": (64, 4, 16)}
_DEFAULT_PIECES = (2048, 16, 128)
"""Chunks are decoded in pieces, because activations at the audio's rate fill memory, and a CPU's caches: how many frames of a
whole batch at a time, but no fewer and no more frames of one request than the two other numbers say."""


class CodecDecoder:
    """Decode codes for many requests, each with its own state."""

    def __init__(self, reader: TensorReader, config: CodecDecoderConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self._device, self._dtype = device, dtype
        self._plan = MemoryPlan()
        latent, channels = config.latent_dim, config.decoder_dim
        self._tables = CodebookTables(reader, config)
        self._pre_conv = CausalConv(reader, self._plan, "pre_conv", (config.codebook_dim, latent, 3))
        self._transformer = WindowTransformer(reader, self._plan, config)
        self._upsample: list[tuple[CausalUpsample, ConvNextBlock]] = []
        for index, ratio in enumerate(config.upsampling_ratios):
            up = CausalUpsample(reader, self._plan, f"upsample.{index}.0", (latent, latent, ratio), stride=ratio)
            self._upsample.append((up, ConvNextBlock(reader, self._plan, f"upsample.{index}.1", latent)))
        self._first = CausalConv(reader, self._plan, "decoder.0", (latent, channels, 7))
        self._blocks = []
        for index, rate in enumerate(config.upsample_rates, 1):
            self._blocks.append(DecoderBlock(reader, self._plan, f"decoder.{index}", channels, rate))
            channels //= 2
        end = len(config.upsample_rates) + 1
        self._last_act = SnakeBeta(reader, f"decoder.{end}", channels)
        self._last = CausalConv(reader, self._plan, f"decoder.{end + 1}", (channels, config.channels, 7))
        reader.finish()
        self._reach_columns = self._reach()
        self._output = torch.promote_types(dtype, torch.float32)
        self._layers = (
            self._tables,
            self._pre_conv,
            self._transformer,
            *(part for pair in self._upsample for part in pair),
            self._first,
            *self._blocks,
            self._last_act,
            self._last,
        )
        self.move(device)

    @classmethod
    def load(cls, folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> CodecDecoder:
        """Load the decoder of the codec in `folder`.

        Raises:
            ConfigError: A file is missing or damaged, or its tensors are not those of this model.
        """
        path = folder / "config.json"
        config = CodecDecoderConfig.read(read_json(path), where=str(path))
        return cls(TensorReader.of_folder(folder, "decoder."), config, device=torch.device(device), dtype=dtype)

    @property
    def device(self) -> torch.device:
        """Where it decodes."""
        return self._device

    def move(self, device: torch.device | None = None) -> None:
        """Move the weights to a device, by default to the one that decodes."""
        for layer in self._layers:
            layer.to(device or self._device, self._dtype)

    def begin(self) -> CodecState:
        """Return the state of a request that has decoded nothing."""
        return self._plan.fresh(self._device, self._dtype)

    def decode(self, codes: Tensor, states: Sequence[CodecState], *, reference: Tensor | None = None) -> Tensor:
        """Decode the next frames of several requests and move their states on.

        Args:
            codes: Whole numbers [batch, frames, quantizers] inside the codebooks, on any device.
            states: One for each row. They change only when everything has been decoded.
            reference: Codes [batch, frames, quantizers] that come before `codes` and whose audio nobody needs. Only those
                that later audio can look back to pass the layers at the audio's rate, which take nearly all of the time.

        Returns:
            Audio [batch, frames * samples_per_frame, channels] in [-1, 1], at least float32.
        """
        flow = Flow(states)
        if reference is not None and reference.shape[1]:
            latents = torch.cat([self._latents(piece, flow) for piece in self._pieces(reference)], -1)
            self._audio(latents[..., -self._reach_columns :], flow)
        audio = [self._audio(self._latents(piece, flow), flow) for piece in self._pieces(codes)]
        flow.commit()
        if not audio:
            return torch.zeros(len(states), 0, self.config.channels, device=self._device)
        return torch.cat(audio, -1).to(self._output).clamp_(-1, 1).transpose(1, 2)

    def _pieces(self, codes: Tensor) -> Sequence[Tensor]:
        codes = codes.to(self._device, torch.int64)
        budget, least, most = _PIECES.get(self._device.type, _DEFAULT_PIECES)
        size = min(max(budget // codes.shape[0], least), most)
        return codes.split(size, dim=1) if codes.shape[1] else ()

    def _latents(self, codes: Tensor, flow: Flow) -> Tensor:
        """Return [batch, latent_dim, columns] at the rate that the convolutions begin with."""
        x = self._transformer(self._pre_conv(self._tables(codes), flow), flow)
        flow.advance(codes.shape[1])
        for up, block in self._upsample:
            x = block(up(x, flow), flow)
        return x

    def _audio(self, x: Tensor, flow: Flow) -> Tensor:
        x = self._first(x, flow)
        for block in self._blocks:
            x = block(x, flow)
        return self._last(self._last_act(x), flow)

    def _reach(self) -> int:
        """Return how many columns of `_latents` the audio of a later one depends on, at most."""
        reach: float = self._last.reach
        for block in reversed(self._blocks):
            reach = block.reach + reach / block.stride
        return math.ceil(self._first.reach + reach) + 1
