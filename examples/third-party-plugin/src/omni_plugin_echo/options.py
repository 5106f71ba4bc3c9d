"""The keys of `extra` that EchoFilesConnector owns; all others are left to the hand-over function."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class EchoFilesOptions(BaseModel):
    """Options of EchoFilesConnector."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    max_payload_bytes: int | None = Field(None, ge=1)
    """Largest payload that is accepted."""
