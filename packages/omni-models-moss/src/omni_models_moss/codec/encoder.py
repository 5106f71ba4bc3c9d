"""The codec's encoder: audio becomes frames of codes, for reference voices. It is the decoder's way backwards."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import read_json
from omni_core.modelkit.weights import TensorReader
from omni_models_moss.codec.config import CodecConfig
from omni_models_moss.codec.quantizer import ResidualQuantizer
from omni_models_moss.codec.stack import CodecStack, spans
from omni_models_moss.codec.transformer import Placement


class CodecEncoder:
    """Encode audio to codes, in float32."""

    def __init__(self, config: CodecConfig, stack: CodecStack, quantizer: ResidualQuantizer) -> None:
        self.config = config
        self._stack = stack
        self._quantizer = quantizer

    @classmethod
    def load(cls, folder: Path, *, device: torch.device | str = "cpu") -> CodecEncoder:
        """Load the encoder of the codec in `folder`.

        Raises:
            ConfigError: A file is missing or damaged, or its tensors are not those of this model.
        """
        path = folder / "config.json"
        config = CodecConfig.read(read_json(path), where=str(path))
        placement = Placement(torch.device(device), torch.float32)
        reader = TensorReader.of_folder(folder, "quantizer.")
        quantizer = ResidualQuantizer(reader, config, placement.device)
        for name in reader.names:
            if name.startswith("output_proj."):
                reader.skip(name)  # only decoding uses it
        reader.finish()
        stack = CodecStack(TensorReader.of_folder(folder, "encoder."), config.encoder, placement, joins=True)
        return cls(config, stack, quantizer)

    def __call__(self, samples: Tensor, levels: int | None = None) -> Tensor:
        """Return the codes of a recording; a last frame that it fills in part is left out, as in the reference.

        Args:
            samples: Float32 [n, channels].
            levels: How many codebooks to use; None for all.

        Returns:
            Codes int64 [n // samples_per_frame, levels].

        Raises:
            ConfigError: The codec has fewer codebooks.
        """
        config = self.config
        levels = config.num_quantizers if levels is None else levels
        if not 1 <= levels <= config.num_quantizers:
            raise ConfigError(
                f"the codec has {config.num_quantizers} codebooks, not {levels}",
                where="n_vq",
                hint="use the codec that belongs to the talker",
            )
        size = config.samples_per_frame
        frames = samples.shape[0] // size
        # What the last frame leaves over would change no earlier code: every part is causal.
        x = samples[: frames * size].reshape(1, frames, size * config.channels)
        stream = self._stack.memory.open()
        try:
            pieces = [self._stack(x[:, begin:end].reshape(1, -1, 1), [stream], end - begin) for begin, end in spans(frames)]
        finally:
            self._stack.memory.close(stream)
        if not pieces:
            return torch.zeros(0, levels, dtype=torch.int64)
        return self._quantizer(torch.cat(pieces, dim=1), levels)[0].cpu()
