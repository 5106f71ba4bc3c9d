"""What the tests of the connectors share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return str(folder)
