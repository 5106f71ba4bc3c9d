"""The keys of `extra` that TransferEngineConnector owns; all others are left to the hand-over function."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TransferEngineOptions(BaseModel):
    """Options of TransferEngineConnector."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    host: str = Field("127.0.0.1", min_length=1)
    """Address of this machine by which the other machines reach it."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """How bytes go from host to host."""
    device: str = ""
    """RDMA devices, separated by commas; empty lets the engine choose."""
    room: int = Field(2 * 2**30, ge=2**20)
    """Bytes that payloads on their way may have together; at the limit the sender is held back."""
