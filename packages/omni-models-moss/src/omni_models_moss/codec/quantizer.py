"""The codec's residual quantizer: a frame's vector as one row of each codebook, each coding what those before it left over."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from omni_core.modelkit.weights import TensorReader
from omni_models_moss.codec.config import CodecConfig


class CodebookTables:
    """From codes to vectors. The rows are already projected: a frame's vector is the sum of one row of each table, and a bias.

    Codes of the first n codebooks alone are a coarser version of the same frame.
    """

    def __init__(self, reader: TensorReader, config: CodecConfig, device: torch.device) -> None:
        self._size = config.codebook_size
        weight, bias = _projection(reader, "output_proj", config.latent_out, config.residual_dim)
        tables = []
        for level in range(config.num_quantizers):
            name = f"quantizers.{level}"
            rows = reader.take(f"{name}.codebook.weight", config.codebook_size, config.codebook_dim)
            out, shift = _projection(reader, f"{name}.out_proj", config.residual_dim, config.codebook_dim)
            tables.append((rows @ out.T + shift) @ weight.T)
        self._rows = torch.cat(tables).to(device)
        self._bias = bias.to(device)

    def move(self, device: torch.device) -> None:
        """Move the tables."""
        self._rows, self._bias = self._rows.to(device), self._bias.to(device)

    def __call__(self, codes: Tensor) -> Tensor:
        """Return float32 vectors [batch, frames, latent_out] of codes [batch, frames, n]."""
        batch, frames, levels = codes.shape
        ids = codes + torch.arange(levels, device=codes.device) * self._size
        summed = F.embedding_bag(ids.reshape(batch * frames, levels), self._rows, mode="sum")
        return summed.reshape(batch, frames, -1) + self._bias


class ResidualQuantizer:
    """From vectors to codes, in float32: a closest row is a decision that rounding must not change."""

    def __init__(self, reader: TensorReader, config: CodecConfig, device: torch.device) -> None:
        weight, bias = _projection(reader, "input_proj", config.residual_dim, config.latent_in)
        self._in = weight.to(device), bias.to(device)
        self._levels = []
        for level in range(config.num_quantizers):
            name = f"quantizers.{level}"
            rows = reader.take(f"{name}.codebook.weight", config.codebook_size, config.codebook_dim)
            inner, shift = _projection(reader, f"{name}.in_proj", config.codebook_dim, config.residual_dim)
            out, out_shift = _projection(reader, f"{name}.out_proj", config.residual_dim, config.codebook_dim)
            projected = rows @ out.T + out_shift
            self._levels.append([part.to(device) for part in (inner, shift, F.normalize(rows, dim=-1), projected)])

    def __call__(self, x: Tensor, levels: int) -> Tensor:
        """Return codes [batch, frames, levels] of vectors [batch, frames, latent_in]."""
        left = F.linear(x.float(), *self._in)
        found = []
        for weight, bias, directions, rows in self._levels[:levels]:
            # Of vectors of length one the closest is the one with the largest product.
            code = (F.normalize(F.linear(left, weight, bias), dim=-1) @ directions.T).argmax(-1)
            left = left - rows[code]
            found.append(code)
        return torch.stack(found, dim=-1)


def _projection(reader: TensorReader, name: str, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return weight [rows, columns] and bias; the file has the weight's direction and length apart."""
    lengths = reader.take(f"{name}.parametrizations.weight.original0", rows, 1, 1)
    directions = reader.take(f"{name}.parametrizations.weight.original1", rows, columns, 1)
    return (lengths * F.normalize(directions.flatten(1), dim=1)[:, :, None])[:, :, 0], reader.take(f"{name}.bias", rows)
