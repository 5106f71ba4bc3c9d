"""Let vLLM's second model runner run on a CPU: Triton kernels are interpreted, and Triton is told that there is a CPU backend.

Put on PYTHONPATH of a process tree with TRITON_INTERPRET=1; slow, for a small correctness lane only.
"""

import contextlib


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True


with contextlib.suppress(ImportError):
    from triton import backends

    backends.backends["cpu"] = type("Backend", (), {"driver": _Driver, "compiler": None})
