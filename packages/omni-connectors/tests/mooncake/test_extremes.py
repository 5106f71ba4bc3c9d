"""Tensors and 1 GiB over a Mooncake store; backpressure is in test_faults."""

from __future__ import annotations

from typing import Any

import pytest

from omni_connectors.testing import MooncakeMaster
from omni_core.testing.connector_extremes import LargePayloadConformance, TensorConformance

TARGET = "omni_connectors.mooncake:MooncakeStoreConnector"
MIB = 2**20


@pytest.mark.engine
class TestTensors(TensorConformance):
    target = TARGET

    @pytest.fixture
    def options(self, master: MooncakeMaster) -> dict[str, Any]:
        return master.options()


@pytest.mark.slow
class TestLargePayload(LargePayloadConformance):
    target = TARGET

    @pytest.fixture
    def options(self, master: MooncakeMaster) -> dict[str, Any]:
        return master.options(segment=1536 * MIB)
