"""The golden cases that the packages carry are cases of the workspace's golden data, so that only one of both need be run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("OMNI_GOLDEN", ROOT.parent / "shared" / "golden"))
OWN = sorted(path.parent for path in ROOT.glob("packages/*/tests/data/*/golden.json"))
SHORTENED = {"golden.json", "golden.npz"}


@pytest.mark.parametrize("folder", OWN, ids=[folder.name for folder in OWN])
def test_a_package_carries_the_checkpoint_and_some_cases_of_the_workspace(folder: Path) -> None:
    shared = SHARED / folder.name
    if not shared.is_dir():
        pytest.skip(f"there is no golden data at {shared}")
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name not in SHORTENED]
    assert any(path.suffix == ".safetensors" for path in files)
    for path in files:
        assert (folder / path).read_bytes() == (shared / path).read_bytes(), path

    (cases, arrays), (all_cases, all_arrays) = _read(folder), _read(shared)
    assert cases.keys() <= all_cases.keys()
    for name, case in cases.items():
        assert case == {field: all_cases[name].get(field) for field in case}, name
    assert arrays.files
    for key in arrays.files:
        assert np.array_equal(arrays[key], all_arrays[key]), key


def _read(folder: Path) -> tuple[dict[str, dict[str, Any]], Any]:
    found = json.loads((folder / "golden.json").read_text(encoding="utf-8"))["cases"]
    return {case["id"]: case for case in found}, np.load(folder / "golden.npz")
