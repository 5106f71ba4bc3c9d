"""The codec's decoder: frames of codes become audio, in chunks of any size, for many requests at once.

    codes -> tables -> transformer -> more columns -> transformer -> ... -> samples, the channels taking turns

Every part is causal and remembers exactly what it looks back to, so a sequence of chunks gives the audio of one decode of
all frames. The audio is not clamped: loud passages may exceed [-1, 1], and what becomes of them is the encoder's matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from omni_core.modelkit.config_reader import read_json
from omni_core.modelkit.weights import TensorReader
from omni_models_moss.codec.config import CodecConfig
from omni_models_moss.codec.memory import Stream
from omni_models_moss.codec.quantizer import CodebookTables
from omni_models_moss.codec.stack import CodecStack, spans
from omni_models_moss.codec.transformer import Placement

_ENCODING = ("input_proj", "in_proj")
"""Parts of the quantizer that only encoding uses."""


class CodecDecoder:
    """Decode codes for many requests, each with its own stream."""

    def __init__(self, config: CodecConfig, tables: CodebookTables, stack: CodecStack, placement: Placement) -> None:
        self.config = config
        self._tables = tables
        self._stack = stack
        self._placement = placement

    @classmethod
    def load(cls, folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> CodecDecoder:
        """Load the decoder of the codec in `folder`.

        Args:
            folder: The codec's folder.
            device: Where to decode.
            dtype: Type to compute in; None for the one that the checkpoint asks for. Codes become vectors in float32 always.

        Raises:
            ConfigError: A file is missing or damaged, or its tensors are not those of this model.
        """
        path = folder / "config.json"
        config = CodecConfig.read(read_json(path), where=str(path))
        placement = Placement(torch.device(device), dtype or getattr(torch, config.compute_dtype))
        reader = TensorReader.of_folder(folder, "quantizer.")
        tables = CodebookTables(reader, config, placement.device)
        for name in reader.names:
            if any(part in name.split(".") for part in _ENCODING):
                reader.skip(name)
        reader.finish()
        stack = CodecStack(TensorReader.of_folder(folder, "decoder."), config.decoder, placement, joins=False)
        return cls(config, tables, stack, placement)

    @property
    def device(self) -> torch.device:
        """Where it decodes."""
        return self._placement.device

    def move(self, device: torch.device | None = None) -> None:
        """Move the weights to a device, by default to the one that decodes; what streams remember stays there."""
        target = device or self._placement.device
        self._tables.move(target)
        self._stack.move(target)

    def begin(self) -> Stream:
        """Return a stream that has decoded nothing; it holds memory until `end`."""
        return self._stack.memory.open()

    def end(self, stream: Stream) -> None:
        """Free a stream's memory."""
        self._stack.memory.close(stream)

    def take_over(self, other: CodecDecoder) -> None:
        """Go on with the streams of another decoder of the same sizes."""
        assert self.config == other.config
        self._stack.memory = other._stack.memory

    def decode(self, codes: Tensor, streams: Sequence[Stream], *, reference: Tensor | None = None) -> Tensor:
        """Decode the next frames of several requests and move their streams on.

        Args:
            codes: Whole numbers [batch, frames, n] inside the first n codebooks, on any device.
            streams: One for each row. They change only when everything has been decoded.
            reference: Codes [batch, frames, n] that come before `codes` and whose audio nobody needs.

        Returns:
            Float32 audio [batch, frames * samples_per_frame, channels], not clamped.
        """
        heard = [] if reference is None else [reference[:, begin:end] for begin, end in spans(reference.shape[1])]
        wanted = [codes[:, begin:end] for begin, end in spans(codes.shape[1])]
        with self._stack.whole(streams, len(heard) + len(wanted)) as moving:
            for piece in heard:
                self._piece(piece, moving)
            made = [self._piece(piece, moving) for piece in wanted]
        if not made:
            return torch.zeros(len(streams), 0, self.config.channels, device=self._placement.device)
        return torch.cat(made, dim=1)

    def _piece(self, codes: Tensor, streams: Sequence[Stream]) -> Tensor:
        x = self._placement.put(self._tables(codes.to(self._placement.device, torch.int64)))
        audio = self._stack(x, streams, codes.shape[1])
        return audio.reshape(len(streams), -1, self.config.channels).float()
