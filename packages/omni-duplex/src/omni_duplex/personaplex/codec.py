"""The codec, Mimi, frame by frame on transformers' modules: audio to codes and codes to audio, equal to doing all at once.

transformers streams the encoder only. Here every convolution keeps the end of its input, every transposed one the end of its
output, and the two transformers the keys of their windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MimiConfig, MimiModel
from transformers.models.mimi.modeling_mimi import MimiConv1d, MimiConvTranspose1d, MimiResnetBlock

from omni_duplex.personaplex.codec_weights import load_codec
from omni_duplex.personaplex.shape import CODES, FRAME_SAMPLES, Shape
from omni_duplex.personaplex.slots import Ends, KeyValues, Rows

_HALVES = 2
"""Positions of the codec's transformers in a frame: they run at 25 Hz."""


def codec_config(shape: Shape) -> MimiConfig:
    """Return transformers' configuration of the codec, with as many codebooks as the network uses."""
    return MimiConfig(**{**shape.codec, "num_quantizers": CODES})


def build_codec(path: Path, shape: Shape, device: torch.device) -> MimiModel:
    """Return the codec with its weights, in float32.

    Raises:
        ConfigError: The file is missing or damaged, or belongs to another model.
    """
    model = MimiModel(codec_config(shape))
    load_codec(model, path)
    return model.to(device).eval()


class _Stream:
    """One direction for every slot."""

    def __init__(self, model: MimiModel, slots: int, device: torch.device) -> None:
        config = model.config
        self._model = model
        self._ends = Ends()
        self._cache = KeyValues(
            layers=config.num_hidden_layers,
            slots=slots,
            heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            window=config.sliding_window,
            count=_HALVES,
            device=device,
            dtype=torch.float32,
        )

    def begin(self, slot: int) -> None:
        """Begin a session's stream."""
        self._ends.begin(slot)
        self._cache.begin(slot)

    def _expect(self, layer: MimiConv1d, number: int) -> None:
        layer.layer_idx = number  # what transformers passes to `Ends.update`
        self._ends.expect(number, int(layer.padding_total), replicates=layer.pad_mode == "replicate")

    def _attend(self, transformer: Any, hidden: Tensor, rows: Rows) -> Tensor:
        """Run a transformer over [slots, channels, 2] and return the same shape."""
        positions, seen = self._cache.open(rows)
        found = transformer(
            hidden.transpose(1, 2), attention_mask=seen, position_ids=positions, past_key_values=self._cache, return_dict=True
        )
        self._cache.close()
        return found.last_hidden_state.transpose(1, 2)  # type: ignore[no-any-return]


class CodecEncoder(_Stream):
    """Turn audio into codes.

    Args:
        model: The codec.
        slots: How many sessions.
        device: Where it computes.
    """

    def __init__(self, model: MimiModel, slots: int, device: torch.device) -> None:
        super().__init__(model, slots, device)
        convolutions = [layer for layer in model.encoder.modules() if isinstance(layer, MimiConv1d)]
        for number, layer in enumerate([*convolutions, model.downsample]):
            self._expect(layer, number)

    def encode(self, audio: Tensor, rows: Rows) -> Tensor:
        """Return the codes int64 [slots, 8] of one frame of audio float32 [slots, 1920]; only the step's slots count."""
        model = self._model
        self._ends.open(rows)
        hidden = model.encoder(audio[:, None], padding_cache=self._ends)
        hidden = self._attend(model.encoder_transformer, hidden, rows)
        hidden = model.downsample(hidden, padding_cache=self._ends)
        self._ends.close()
        return model.quantizer.encode(hidden, CODES).permute(1, 0, 2)[..., 0]  # type: ignore[no-any-return]


class CodecDecoder(_Stream):
    """Turn codes into audio; the arguments are those of the encoder."""

    def __init__(self, model: MimiModel, slots: int, device: torch.device) -> None:
        super().__init__(model, slots, device)
        self._numbers: dict[int, int] = {}
        for number, layer in enumerate([model.upsample, *model.decoder.modules()]):
            if isinstance(layer, MimiConv1d):
                self._expect(layer, number)
            elif isinstance(layer, MimiConvTranspose1d):
                self._numbers[id(layer)] = number

    def decode(self, codes: Tensor, rows: Rows) -> Tensor:
        """Return the audio float32 [slots, 1920] of one frame of codes int64 [slots, 8]; only the step's slots count."""
        model = self._model
        self._ends.open(rows)
        hidden = self._widen(model.upsample, model.quantizer.decode(codes[:, :, None]))
        hidden = self._attend(model.decoder_transformer, hidden, rows)
        for layer in model.decoder.layers:
            if isinstance(layer, MimiConvTranspose1d):
                hidden = self._widen(layer, hidden)
            elif isinstance(layer, (MimiConv1d, MimiResnetBlock)):
                hidden = layer(hidden, padding_cache=self._ends)
            else:
                hidden = layer(hidden)
        self._ends.close()
        assert hidden.shape[-1] == FRAME_SAMPLES, "a frame is a frame"
        return hidden[:, 0]  # type: ignore[no-any-return]

    def _widen(self, layer: MimiConvTranspose1d, hidden: Tensor) -> Tensor:
        """Run a transposed convolution, adding what the frame before left over and keeping what this one does."""
        made = layer.conv(hidden)
        rest = layer.padding_right
        number = self._numbers[id(layer)]
        made[..., :rest] += self._ends.held(number, made[..., :rest])
        tail = made[..., -rest:]
        if layer.conv.bias is not None:
            tail = tail - layer.conv.bias[:, None]  # the next frame adds it, too
        self._ends.keep(number, tail)
        return made[..., :-rest]  # type: ignore[no-any-return]
