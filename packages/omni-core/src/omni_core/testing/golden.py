"""Golden cases of model packages: requests to a tiny checkpoint, and what the reference implementation made of them.

A package has a few of them in `tests/data/`; where the workspace's golden data is, its tests run for all of that instead
and are marked `golden`.
"""

from __future__ import annotations

import json
import os
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.speech import ReferenceAudio


@cache
def _load(folder: Path) -> tuple[dict[str, Any], Any]:
    return json.loads((folder / "golden.json").read_text(encoding="utf-8")), np.load(folder / "golden.npz")


@dataclass(frozen=True)
class GoldenCase:
    """One request of a golden folder."""

    folder: Path
    id: str

    @property
    def record(self) -> dict[str, Any]:
        """All that golden.json says about it."""
        return next(case for case in _load(self.folder)[0]["cases"] if case["id"] == self.id)

    @property
    def request(self) -> dict[str, Any]:
        """What the reference was asked."""
        found: dict[str, Any] = self.record["request"]
        return found

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return an array of golden.npz, None where the case has none of this name."""
        arrays = _load(self.folder)[1]
        key = f"{self.id}__{name}"
        return arrays[key] if key in arrays.files else None


@dataclass(frozen=True)
class GoldenFolder:
    """A checkpoint with golden cases."""

    path: Path
    is_shared: bool = False
    """Whether it is outside the package."""

    def param(self, value: Any, *names: str) -> Any:
        """Return a value that belongs to it as a parameter of a test."""
        parts = ["shared"] * self.is_shared + [self.path.name, *names]
        return pytest.param(value, id="-".join(parts), marks=[pytest.mark.golden] * self.is_shared)


def golden_folders(tests: Path, names: Sequence[str]) -> list[GoldenFolder]:
    """Return all golden folders of the workspace, or where they are not the package's own, which is the first of these.

    A package's own has cases of the workspace's folder of that name, over the same checkpoint (tests/test_golden_data.py).

    Args:
        tests: The package's folder of tests.
        names: Names of the folders.
    """
    root = next(_roots(tests), None)
    shared = [GoldenFolder(root / name, True) for name in names if (root / name).is_dir()] if root else []
    has_first = any(folder.path.name == names[0] for folder in shared)
    return shared if has_first else [GoldenFolder(tests / "data" / names[0]), *shared]


def _roots(tests: Path) -> Iterator[Path]:
    """Return where the workspace's golden data may be: named by the environment, or beside the checkout."""
    for place in (os.environ.get("OMNI_GOLDEN"), "/work/shared/golden", tests.parents[2].parent / "shared" / "golden"):
        if place and Path(place).is_dir():
            yield Path(place)


def golden_cases(folder: Path, kind: type[GoldenCase] = GoldenCase) -> list[Any]:
    """Return the cases of a folder as objects of `kind`."""
    return [kind(folder, record["id"]) for record in _load(folder)[0]["cases"]]


def give_folders(metafunc: pytest.Metafunc, folders: Sequence[GoldenFolder]) -> None:
    """Run a test that has the argument `golden_folder` once for each folder."""
    if "golden_folder" in metafunc.fixturenames:
        metafunc.parametrize("golden_folder", [folder.param(folder.path) for folder in folders], scope="module")


def give_cases(
    metafunc: pytest.Metafunc,
    folders: Sequence[GoldenFolder],
    kind: type[GoldenCase],
    argument: str = "case",
    chosen: Callable[[Any], bool] = lambda case: True,
) -> None:
    """Run a test that has an argument once for each case.

    Args:
        metafunc: The test.
        folders: Where the cases are.
        kind: Their class.
        argument: Name of the argument.
        chosen: Says which cases count.
    """
    if argument in metafunc.fixturenames:
        cases = ((folder, case) for folder in folders for case in golden_cases(folder.path, kind) if chosen(case))
        metafunc.parametrize(argument, [folder.param(case, case.id) for folder, case in cases])


def read_recording(path: Path) -> ReferenceAudio:
    """Return a WAV file of 16 bits as a client sends it: samples [n], or [n, channels] where there are more than one."""
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / np.float32(32768)
        channels = file.getnchannels()
        return ReferenceAudio(samples if channels == 1 else samples.reshape(-1, channels), file.getframerate())
