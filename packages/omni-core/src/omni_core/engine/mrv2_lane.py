"""vLLM's second model runner on a CPU: slow, and right enough to compare its results with the first one's.

Its kernels are Triton's. Triton's interpreter runs them without a compiler, but vLLM asks for a backend of the platform first,
and the Triton of PyPI has none for CPUs. `install` supplies an empty one. Call it first thing in a process, before anything
imports vLLM; a process forked later inherits it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

ENVIRONMENT = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
"""What the process and its children need besides."""


class _Driver:
    """Says that its platform is there; everything else is the interpreter's."""

    @staticmethod
    def is_active() -> bool:
        """Return True."""
        return True


def install() -> None:
    """Make Triton believe in a CPU and choose the second model runner.

    Raises:
        RuntimeError: vLLM is imported already and has decided that there is no Triton.
    """
    if "vllm" in sys.modules:
        raise RuntimeError("mrv2_lane.install must run before vllm is imported")
    os.environ.update(ENVIRONMENT)
    import triton.backends

    backend: Any = type("CpuBackend", (), {"driver": _Driver, "compiler": None})
    triton.backends.backends.setdefault("cpu", backend)
