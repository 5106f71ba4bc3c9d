"""A real store for the tests of MooncakeStoreConnector."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from omni_connectors.testing import MooncakeMaster, mooncake_master, why_no_mooncake

_why_not = cache(why_no_mooncake)


@pytest.fixture(scope="session")
def mooncake() -> None:
    """Skip a test where Mooncake is not installed."""
    if reason := _why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def master(mooncake: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeMaster]:
    """A store that all tests share and none harms."""
    with mooncake_master(tmp_path_factory.mktemp("mooncake")) as running:
        yield running


@pytest.fixture
def own_master(mooncake: None, tmp_path: Path) -> Iterator[MooncakeMaster]:
    """A store of one test, which may kill it."""
    with mooncake_master(tmp_path) as running:
        yield running
