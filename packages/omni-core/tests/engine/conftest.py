"""What the engine's tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def short_tmp() -> Iterator[str]:
    """A folder for temporary files of other processes, with a path short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="ot") as folder:
        yield folder


@pytest.fixture
def run_dirs() -> Callable[[], list[Path]]:
    """Return a function that lists the run directories of this process."""
    pattern = f"omni-{os.getpid()}-*-[0-9a-f]*"
    return lambda: list(Path(tempfile.gettempdir()).glob(pattern))
