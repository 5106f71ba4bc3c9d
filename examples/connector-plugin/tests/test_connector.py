"""The connector passes the suite that omni-core offers for every connector, and holds senders back when it is full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from omni_core.connector import PeerGone, Role
from omni_core.testing.connector_ends import StartPeer
from omni_core.testing.connector_extremes import RoomConformance
from omni_core.testing.connector_suite import ConnectorConformance

TARGET = "omni_plugin_transfer.connector:TransferEngineConnector"


class TestTransferEngineConnector(ConnectorConformance):
    target = TARGET

    def test_a_sender_killed_before_the_fetch_is_reported(self, make_end: Any, start_peer: StartPeer) -> None:
        sender, receiver = start_peer(Role.SENDER), make_end(Role.RECEIVER)
        handle = sender.call("put", request_id="request", nbytes=5000, seed=1)["handle"]

        sender.kill()

        with pytest.raises(PeerGone):
            receiver.get(bytes.fromhex(handle), 30.0)


class TestRoom(RoomConformance):
    target = TARGET
    too_large = 64 * 2**20

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        return {"room": 16 * 2**20}
