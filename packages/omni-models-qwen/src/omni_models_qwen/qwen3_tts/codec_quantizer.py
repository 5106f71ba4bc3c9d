"""From codes to vectors: the codec's residual codebooks, as tables whose rows are already projected."""

from __future__ import annotations

import torch
from torch import Tensor

from omni_core.modelkit.weights import TensorReader
from omni_models_qwen.qwen3_tts.codec_config import CodecDecoderConfig

_MIN_USAGE = 1e-5


class CodebookTables:
    """Look up frames of codes. A frame's vector is the sum of one row of each table."""

    def __init__(self, reader: TensorReader, config: CodecDecoderConfig) -> None:
        semantic = config.num_semantic_quantizers
        tables: list[Tensor] = []
        for name, levels in (("rvq_first", semantic), ("rvq_rest", config.num_quantizers - semantic)):
            projection = reader.take(f"quantizer.{name}.output_proj.weight", config.codebook_dim, config.codebook_dim // 2, 1)
            reader.skip(f"quantizer.{name}.input_proj.weight")  # only encoding uses it
            books = (_codebook(reader, f"quantizer.{name}.vq.layers.{level}._codebook", config) for level in range(levels))
            tables += [rows @ projection[:, :, 0].T for rows in books]
        self._rows = torch.cat(tables)
        self._offsets = torch.arange(config.num_quantizers) * config.codebook_size

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the tables."""
        self._rows = self._rows.to(device, dtype)
        self._offsets = self._offsets.to(device)

    def __call__(self, codes: Tensor) -> Tensor:
        """Return vectors [batch, codebook_dim, frames] of codes [batch, frames, quantizers]."""
        batch, frames, levels = codes.shape
        ids = (codes + self._offsets).reshape(batch * frames, levels)
        summed = torch.nn.functional.embedding_bag(ids, self._rows, mode="sum")
        return summed.reshape(batch, frames, -1).transpose(1, 2)


def _codebook(reader: TensorReader, name: str, config: CodecDecoderConfig) -> Tensor:
    """Return a codebook's rows; what is stored are sums of vectors, and how many each is the sum of."""
    usage = reader.take(f"{name}.cluster_usage", config.codebook_size)
    sums = reader.take(f"{name}.embedding_sum", config.codebook_size, config.codebook_dim // 2)
    return sums / usage.clamp(min=_MIN_USAGE)[:, None]
