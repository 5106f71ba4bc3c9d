"""Fixtures of omni-core's tests."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_core.model_info import ModelInfo


@pytest.fixture
def plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on `sys.path` for `omni_core.testing.plugins.install`."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    yield folder
    importlib.invalidate_caches()


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., ModelInfo]:
    """Return a function that makes a checkpoint with the given config.json."""

    def make(name: str = "checkpoint", **config: Any) -> ModelInfo:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return ModelInfo(str(folder), folder, config)

    return make
