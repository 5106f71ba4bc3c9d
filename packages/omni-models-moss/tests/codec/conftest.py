"""Codecs to test with: a golden one, a tiny one, and a straight-line implementation to compare with."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_models_moss.codec.tiny import write_codec

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="session")
def golden_codec(data_folder: Path) -> Path:
    """The codec that comes with these tests; the reference implementation's weights and names."""
    return data_folder / "audio_tokenizer"


@pytest.fixture(scope="session")
def tiny_codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny codec: windows of a few frames, and the released codecs' names."""
    folder = tmp_path_factory.mktemp("codec") / "audio_tokenizer"
    write_codec(folder, 3)
    return folder


class StraightCodec:
    """The codec once more, in numpy and float64: a whole recording at a time, no pieces, no memory, no folded weights."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.weights = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
        self.levels = self.config["quantizer_kwargs"]["num_quantizers"]

    def decode(self, codes: Array) -> Array:
        """Return audio [samples, 2] of codes [frames, n]."""
        x: Array = np.zeros(())
        for level in range(codes.shape[1]):
            rows = self.weights[f"quantizer.quantizers.{level}.codebook.weight"][codes[:, level]]
            x = x + self._project(rows, f"quantizer.quantizers.{level}.out_proj")
        x, rate = self._project(x, "quantizer.output_proj"), 12.5
        for index, part in enumerate(self.config["decoder_kwargs"]):
            if size := part.get("patch_size"):
                x = x.reshape(len(x), -1, size).swapaxes(1, 2).reshape(len(x) * size, -1)
                rate *= size
            else:
                x = self._transform(x, f"decoder.{index}", part, rate)
        return x.reshape(-1, 2)

    def encode(self, samples: Array) -> Array:
        """Return codes [frames, levels] of samples [n, 2]."""
        frames = len(samples) // self.config["downsample_rate"]
        x, rate = samples[: frames * self.config["downsample_rate"]].astype(np.float64).reshape(-1, 1), 96000.0
        for index, part in enumerate(self.config["encoder_kwargs"]):
            if size := part.get("patch_size"):
                x = x.reshape(len(x) // size, size, -1).swapaxes(1, 2).reshape(len(x) // size, -1)
                rate /= size
            else:
                x = self._transform(x, f"encoder.{index}", part, rate)
        left, codes = self._project(x, "quantizer.input_proj"), []
        for level in range(self.levels):
            name = f"quantizer.quantizers.{level}"
            rows = self.weights[f"{name}.codebook.weight"]
            wanted = self._project(left, f"{name}.in_proj")
            wanted, units = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (wanted, rows))
            codes.append(((wanted[:, None] - units) ** 2).sum(-1).argmin(1))
            left = left - self._project(rows[codes[-1]], f"{name}.out_proj")
        return np.stack(codes, axis=1)

    def _project(self, x: Array, name: str) -> Array:
        length, direction = (self.weights[f"{name}.parametrizations.weight.original{k}"][..., 0] for k in (0, 1))
        return x @ (length * direction / np.linalg.norm(direction, axis=1, keepdims=True)).T + self.weights[f"{name}.bias"]

    def _transform(self, x: Array, name: str, part: dict[str, Any], rate: float) -> Array:
        x = x @ self.weights[f"{name}.input_proj.weight"].T
        for index in range(part["num_layers"]):
            layer = f"{name}.transformer.layers.{index}"
            attended = self._attend(self._norm(x, f"{layer}.norm1"), layer, part, rate)
            x = x + attended * self.weights[f"{layer}.layer_scale_1.scale"]
            inner = self._norm(x, f"{layer}.norm2") @ self._one_of(f"{layer}.linear1", f"{layer}.ffn.0").T
            inner = inner * 0.5 * (1 + _erf(inner / np.sqrt(2)))
            out = inner @ self._one_of(f"{layer}.linear2", f"{layer}.ffn.2").T
            x = x + out * self.weights[f"{layer}.layer_scale_2.scale"]
        return x @ self.weights[f"{name}.output_proj.weight"].T

    def _attend(self, x: Array, layer: str, part: dict[str, Any], rate: float) -> Array:
        count, heads = len(x), part["num_heads"]
        packed = x @ self._one_of(f"{layer}.self_attn.in_projs.0", f"{layer}.self_attn.in_proj").T
        query, key, value = packed.reshape(count, 3, heads, -1).transpose(1, 2, 0, 3)
        query, key = _turned(query), _turned(key)
        window = int(rate * part.get("context_duration", 10.0))
        distance = np.arange(count)[:, None] - np.arange(count)
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y = (scores / scores.sum(-1, keepdims=True)) @ value
        return (
            y.swapaxes(0, 1).reshape(count, -1)
            @ self._one_of(f"{layer}.self_attn.out_projs.0", f"{layer}.self_attn.out_proj").T
        )

    def _norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _one_of(self, *names: str) -> Array:
        return next(self.weights[f"{name}.weight"] for name in names if f"{name}.weight" in self.weights)


def _erf(x: Array) -> Array:
    import torch

    found: Array = torch.erf(torch.from_numpy(x)).numpy()
    return found


def _turned(x: Array) -> Array:
    """Return [heads, columns, head] with each pair of neighbours turned by its angle, as one complex number."""
    size = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape)


@pytest.fixture(scope="session")
def straight() -> Callable[[Path], StraightCodec]:
    """Return the straight-line codec of a folder."""
    return cache(StraightCodec)
