"""Stage 1: a light model that plays numbers. The runner of core batches the chunks of many requests for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.runner import LightChunk, LightModel
from omni_core.stage import ResolvedStage
from omni_plugin_echo.checkpoint import Facts, load_pitches, read_facts


@dataclass
class Voice:
    """What goes on from one chunk of a request to the next."""

    factor: float = 1.0
    phase: float = 0.0
    """Where the wave was when the last chunk ended, so that chunks join without a click. In turns."""


class EchoTone(LightModel):
    """Play each number as a sine of its pitch."""

    def __init__(self, facts: Facts, pitches: np.ndarray[Any, Any]) -> None:
        self.facts = facts
        self.pitches = pitches
        self.sample_rate: int = facts.sample_rate

    @classmethod
    def load(cls, stage: ResolvedStage) -> EchoTone:
        """Load the checkpoint.

        Raises:
            ConfigError: A file is missing or damaged; the message names it.
        """
        folder = Path(stage.model)
        return cls(read_facts(json.loads((folder / "config.json").read_text())), load_pitches(folder))

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> Voice:
        """Return a fresh state."""
        return Voice()

    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return the audio of each chunk: float32 [samples, 1]."""
        return [{"audio": self._play(chunk.state, chunk.payload)} for chunk in chunks]

    def _play(self, state: Voice, payload: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        if "voice" in payload:
            state.factor = self.facts.voices[payload["voice"]]
        numbers = np.asarray(payload.get("numbers", ()), np.int64)
        if not numbers.size:
            return np.zeros((0, 1), np.float32)
        turns_per_sample = np.repeat(self.pitches[numbers].astype(np.float64), self.facts.samples_per_character)
        turns = state.phase + np.cumsum(turns_per_sample * state.factor / self.sample_rate)
        state.phase = float(turns[-1] % 1)
        return (0.5 * np.sin(2 * np.pi * turns)).astype(np.float32).reshape(-1, 1)
