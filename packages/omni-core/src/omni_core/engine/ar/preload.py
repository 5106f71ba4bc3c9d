"""What the fork server imports for AR stages: vLLM's engine core, worker and client, so that an engine starts in a second.

Importing this module has that effect and no other; the fork server's own module collects and freezes the heap afterwards.
"""

from __future__ import annotations

import importlib
import os

import torch

from omni_core.engine import vllm_bridge

_MODULES = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.core.sched.scheduler",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.layers.quantization.online.base",
    "compressed_tensors",
    "omni_core.engine.ar.runner",
    "omni_core.engine.ar.scheduler",
)
_CPU_MODULES = ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn", "omni_core.engine.ar.worker")
"""Only where nothing of them can touch CUDA: a process that has may not be forked."""


def _load() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    names = list(_MODULES)
    if vllm_bridge.current_platform.is_cpu():
        names += _CPU_MODULES
    for name in names:
        importlib.import_module(name)
    if vllm_bridge.current_platform.is_cpu():
        vllm_bridge.current_platform.register_triton_kernel_overrides()


_load()
