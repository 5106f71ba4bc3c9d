"""A tiny checkpoint, its stages in this process, and the same network written down in a straight line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage
from omni_duplex.personaplex.pipeline import ARCHITECTURES, PERSONAPLEX
from omni_duplex.personaplex.shape import FRAME_SAMPLES, Shape
from omni_duplex.personaplex.tiny import build_tiny

if TYPE_CHECKING:
    from omni_duplex.personaplex.code2wav import PersonaPlexCode2Wav
    from omni_duplex.personaplex.stage import PersonaPlexStage

Frames = np.ndarray[Any, np.dtype[np.float32]]
OPENING = {"instructions": "you are well", "voice": "NATF2"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("personaplex") / "tiny"
    build_tiny(found)
    return found


@pytest.fixture(scope="session")
def shape(folder: Path) -> Shape:
    return Shape.of_config(json.loads((folder / "config.json").read_text()))


@pytest.fixture(scope="session")
def resolved(folder: Path) -> Callable[..., ResolvedStage]:
    """Return a stage over the checkpoint, for so many sessions."""

    def make(stage_id: int, sessions: int = 3, **values: Any) -> ResolvedStage:
        architecture = PERSONAPLEX.architecture(stage_id)
        defaults: dict[str, Any] = {
            "pipeline": PERSONAPLEX.model_type,
            "topology": PERSONAPLEX.stages[stage_id],
            "model": str(folder),
            "architecture": architecture,
            "architecture_target": ARCHITECTURES[architecture],
            "runner": "omni_core.engine.light_runner:LightRunner",
            "duplex_max_sessions": sessions,
        }
        return ResolvedStage(**{**defaults, **values})

    return make


class Pair:
    """Both stages for several sessions, without a pipeline around them."""

    def __init__(self, stage: PersonaPlexStage, code2wav: PersonaPlexCode2Wav) -> None:
        self.stage = stage
        self.code2wav = code2wav
        self._states: dict[str, tuple[Any, Any]] = {}

    def open(self, name: str, **opening: Any) -> int:
        """Begin a session and return how many frames its prompt took."""
        self._states[name] = self.stage.begin(name, {}), self.code2wav.begin(name, {})
        first = LightChunk(name, self._states[name][0], {**OPENING, **opening}, False)
        return int(self.stage.step([first])[0]["prompt_frames"][0])

    def step(self, frames: dict[str, Frames]) -> dict[str, tuple[int, Any, bytes]]:
        """Return the token, the codes and the audio's bytes of a frame of each of some sessions, computed in one step."""
        chunks = [LightChunk(name, self._states[name][0], {"audio": frame}, False) for name, frame in frames.items()]
        said = self.stage.step(chunks)
        second = [
            LightChunk(chunk.request_id, self._states[chunk.request_id][1], {"codes": result["codes"]}, False)
            for chunk, result in zip(chunks, said, strict=True)
        ]
        sound = self.code2wav.step(second)
        return {
            name: (int(result["token"][0]), result["codes"][0], wave["audio"].tobytes())
            for name, result, wave in zip(frames, said, sound, strict=True)
        }

    def close(self, name: str) -> None:
        """End a session."""
        first, second = self._states.pop(name)
        self.stage.end(first)
        self.code2wav.end(second)

    def alone(self, audio: Frames, **opening: Any) -> list[tuple[int, Any, bytes]]:
        """Return what a session gives that nobody shares the stages with."""
        self.open("alone", **opening)
        found = [self.step({"alone": frame})["alone"] for frame in audio]
        self.close("alone")
        return found


@pytest.fixture(scope="module")
def pair(resolved: Callable[..., ResolvedStage]) -> Pair:
    """Both stages for three sessions. A test that ends its sessions leaves them as they were."""
    import torch

    from omni_duplex.personaplex.code2wav import PersonaPlexCode2Wav
    from omni_duplex.personaplex.stage import PersonaPlexStage

    torch.set_num_threads(1)
    return Pair(PersonaPlexStage.load(resolved(0)), PersonaPlexCode2Wav.load(resolved(1)))


@pytest.fixture
def noise() -> Callable[..., Frames]:
    """Return frames of the user's audio: noise that sounds different from seed to seed."""

    def make(count: int, seed: int = 0, level: float = 0.2) -> Frames:
        chance = np.random.default_rng(seed)
        return (level * chance.standard_normal((count, FRAME_SAMPLES))).astype(np.float32)

    return make
