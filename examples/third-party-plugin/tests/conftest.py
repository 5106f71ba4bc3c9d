"""What the tests share: a checkpoint, and whether the plugin is installed."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from omni_plugin_echo import tiny


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "echo"
    tiny.build(folder, "default", 0)
    return folder


@pytest.fixture
def installed() -> None:
    """Skip a test that needs Omni to find the plugin by its entry point."""
    try:
        metadata.distribution("omni-plugin-echo")
    except metadata.PackageNotFoundError:
        pytest.skip("install the plugin first: pip install -e .")
