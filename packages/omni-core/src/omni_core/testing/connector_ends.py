"""The two ends of a connector under test, as fixtures, and what its tests compare; see `connector_suite`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from omni_core.connector import Connector, Role
from omni_core.testing.connector_peer import Peer, make_connector, make_edge

DEADLINE_S = 30.0
"""Given to calls that should end long before."""

MakeEnd = Callable[..., Connector]
StartPeer = Callable[[Role], Peer]


def assert_equal(sent: Any, got: Any) -> None:
    """Check that a payload, or a part of one, came as it was sent."""
    if isinstance(sent, np.ndarray):
        assert isinstance(got, np.ndarray)
        assert got.dtype == sent.dtype
        assert got.shape == sent.shape
        assert np.array_equal(got, sent)
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key, value in sent.items():
            assert_equal(value, got[key])
    elif isinstance(sent, list):
        assert len(got) == len(sent)
        for one, other in zip(sent, got, strict=True):
            assert_equal(one, other)
    else:
        assert type(got) is type(sent)
        assert got == sent


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds, at most DEADLINE_S."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S:g} s for {what}"
        time.sleep(0.005)


class ConnectorEnds:
    """Fixtures for one connector class, in one process and across processes."""

    target: ClassVar[str]
    """Target of the Connector subclass."""

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """Return the connector's options, plain values only."""
        return {}

    @pytest.fixture
    def run_dir(self, tmp_path: Path) -> str:
        """Return a private folder."""
        folder = tmp_path / "run"
        folder.mkdir(mode=0o700)
        return str(folder)

    @pytest.fixture
    def make_end(self, run_dir: str, options: Mapping[str, Any]) -> Iterator[MakeEnd]:
        """Return a function `(role, **edge)` that makes one end; every end is closed after the test."""
        made: list[Connector] = []

        def make(role: Role, run_dir: str = run_dir, **edge: int) -> Connector:
            made.append(make_connector(self.target, options, make_edge(run_dir, role, **edge)))
            return made[-1]

        yield make
        for connector in made:
            connector.close()

    @pytest.fixture
    def sender(self, make_end: MakeEnd) -> Connector:
        """Return the sending end of an edge."""
        return make_end(Role.SENDER)

    @pytest.fixture
    def receiver(self, make_end: MakeEnd, sender: Connector) -> Connector:
        """Return the receiving end of the same edge."""
        return make_end(Role.RECEIVER)

    @pytest.fixture
    def start_peer(self, run_dir: str, options: Mapping[str, Any]) -> Iterator[StartPeer]:
        """Return a function `(role)` that starts one end in a process of its own."""
        started: list[Peer] = []

        def start(role: Role) -> Peer:
            started.append(Peer(self.target, options, make_edge(run_dir, role)))
            return started[-1]

        yield start
        for peer in started:
            peer.__exit__()
