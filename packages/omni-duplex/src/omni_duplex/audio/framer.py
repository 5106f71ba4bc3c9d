"""Cut audio of any lengths into units of one length."""

from __future__ import annotations

import numpy as np

from omni_duplex.model import Samples


class Framer:
    """Collect samples and give them back in units. How the input was cut does not change the output.

    Args:
        unit: Samples of a unit.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._rest: Samples = np.zeros(0, np.float32)

    @property
    def pending(self) -> int:
        """Samples that are not a whole unit yet."""
        return len(self._rest)

    def push(self, pcm: Samples) -> list[Samples]:
        """Return the units that are whole now."""
        self._rest = np.concatenate((self._rest, pcm)) if len(self._rest) else pcm
        whole = len(self._rest) // self.unit
        units = [self._rest[index * self.unit : (index + 1) * self.unit] for index in range(whole)]
        self._rest = self._rest[whole * self.unit :]
        return units

    def fill(self) -> Samples:
        """Return what is there, filled up to a unit with silence."""
        unit = np.zeros(self.unit, np.float32)
        unit[: len(self._rest)] = self._rest
        self._rest = np.zeros(0, np.float32)
        return unit

    def clear(self) -> None:
        """Forget what is not a whole unit yet."""
        self._rest = np.zeros(0, np.float32)
