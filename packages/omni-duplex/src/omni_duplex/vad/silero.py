"""Silero's speech detector on onnxruntime: how likely it is that somebody speaks, for each 32 ms."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.errors import DependencyError
from omni_duplex.model import Samples

RATE = 16_000
FRAME = 512
"""Samples that are judged at once: 32 ms."""
_CONTEXT = 64
"""Samples before a frame that the network sees too."""


@cache
def load(path: Path) -> Any:
    """Return the network, one for all sessions of a process; it keeps no state.

    Raises:
        DependencyError: onnxruntime is not there.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyError(
            "onnxruntime is not installed", where="turn detection", hint="pip install 'omni-duplex[vad]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class SileroVad:
    """One session's ear: the network and what it remembers of the session.

    Args:
        network: What `load` returned.
    """

    def __init__(self, network: Any) -> None:
        self._network = network
        self.reset()

    def reset(self) -> None:
        """Forget what was heard."""
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)

    def judge(self, frame: Samples) -> float:
        """Return the probability of speech in a frame of FRAME samples at RATE Hz."""
        heard = np.concatenate((self._context, frame))[None]
        inputs = {"input": heard, "state": self._state, "sr": np.array(RATE, np.int64)}
        probability, self._state = self._network.run(None, inputs)
        self._context = frame[-_CONTEXT:]
        return float(probability[0, 0])
