"""Where and how exactly the stages that decode frames compute: what is in common beyond `omni_core.modelkit.codec_stage`."""

from __future__ import annotations

from typing import Any

import torch

from omni_core.modelkit.codec_stage import stage_device, stage_dtype
from omni_core.stage import ResolvedStage


def decoder_dtype(stage: ResolvedStage) -> torch.dtype:
    """Return the dtype that a stage computes in, float32 where nothing else is asked: what a listener hears is made here.

    Raises:
        ConfigError: The dtype is not known.
    """
    return stage_dtype(stage) or torch.float32


def decoder_device(stage: ResolvedStage) -> str:
    """Return torch's name of a stage's device, and let float32 products be rounded on it or not (`decode_enable_tf32`)."""
    device = stage_device(stage)
    if device == "cuda":
        allow_tf32(bool(edge_options(stage).get("decode_enable_tf32", False)))
    return device


def edge_options(stage: ResolvedStage) -> dict[str, Any]:
    """Return the stream options of the edge that brings the codes."""
    return dict(stage.inputs[0].stream) if stage.inputs else {}


def allow_tf32(allowed: bool) -> None:
    """Let float32 products on CUDA round their inputs to ten bits, for speed, or not (`decode_enable_tf32`)."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
