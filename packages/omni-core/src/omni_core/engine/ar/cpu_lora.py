"""LoRA on CPUs: rows of a batch that want no adapter get none. Installed in the engine core, before a model is loaded.

vLLM marks such rows with the index -1 and its torch kernels take that for the last slot, so that they would be answered with
whatever adapter lies there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omni_core.engine.vllm_bridge import lora_ops, punica_cpu

_KERNELS = ("bgmv_expand", "bgmv_expand_slice")
"""The kernels that add to a layer's output. The ones for prefill call them."""


def install() -> None:
    """Let the kernels leave rows without an adapter alone. A second call does nothing."""
    for name in _KERNELS:
        kernel = getattr(lora_ops, name)
        if not hasattr(kernel, "without_mask"):
            masked = _masked(kernel)
            setattr(lora_ops, name, masked)
            setattr(punica_cpu, name, masked)


def _masked(kernel: Callable[..., None]) -> Callable[..., None]:
    def masked(
        inputs: torch.Tensor, weights: torch.Tensor, output: torch.Tensor, indices: torch.Tensor, *rest: Any, **named: Any
    ) -> None:
        kernel(inputs.masked_fill((indices < 0)[:, None], 0), weights, output, indices, *rest, **named)

    masked.without_mask = kernel  # type: ignore[attr-defined]
    return masked
