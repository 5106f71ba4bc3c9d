"""Backpressure, tensors and 1 GiB over shared memory."""

from __future__ import annotations

import pytest

from omni_connectors.shm import sender
from omni_core.testing.connector_extremes import LargePayloadConformance, RoomConformance, TensorConformance

TARGET = "omni_connectors.shm:SharedMemoryConnector"
MIB = 2**20


class TestRoom(RoomConformance):
    target = TARGET
    too_large = 17 * MIB

    @pytest.fixture(autouse=True)
    def little_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sender, "ARENA_BYTES", 8 * MIB)
        monkeypatch.setattr(sender, "LARGE_CAP_BYTES", 16 * MIB)


@pytest.mark.engine
class TestTensors(TensorConformance):
    target = TARGET


@pytest.mark.slow
class TestLargePayload(LargePayloadConformance):
    target = TARGET
