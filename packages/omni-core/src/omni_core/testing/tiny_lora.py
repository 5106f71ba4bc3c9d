"""LoRA adapters with random weights in PEFT's layout, and checkpoints into which one was merged, to compare with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK = 8
ALPHA = 16
_PREFIX = "base_model.model."


def build_adapter(
    folder: Path, layers: Mapping[str, tuple[int, int]], *, seed: int = 0, size: float = 0.3, rank: int = RANK
) -> Path:
    """Write an adapter and return its folder.

    Args:
        folder: Where to.
        layers: Shape [out, in] of each layer's weight that it changes, by the layer's name in the model.
        seed: Of the random numbers.
        size: Of the random numbers; with 0 the adapter changes nothing.
        rank: Its rank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, (rows, columns) in layers.items():
        weights[f"{_PREFIX}{name}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) * size
        weights[f"{_PREFIX}{name}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * size
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def merge_adapter(checkpoint: Path, adapter: Path, folder: Path) -> Path:
    """Write the checkpoint with the adapter's changes added to its weights and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = load_file(checkpoint / "model.safetensors")
    changes = load_file(adapter / "adapter_model.safetensors")
    for name, lower in changes.items():
        if name.endswith(".lora_A.weight"):
            layer = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
            upper = changes[name.replace(".lora_A.", ".lora_B.")]
            weights[f"{layer}.weight"] += upper @ lower * (ALPHA / lower.shape[0])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    return folder
