"""The keys of `extra` that MooncakeStoreConnector owns (CN-02); all others are stream policy."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PEER_TO_PEER = "P2PHANDSHAKE"
"""Value of `metadata_server` for a store without one: clients tell each other where their memory is."""
MIB = 2**20


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or of a URL with a port.

    Raises:
        ValueError: There is no host or no port.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    if not parts.hostname or not parts.port:
        raise ValueError(f"{address!r} has no host or no port, as in 127.0.0.1:50051")
    return parts.hostname, parts.port


def _is_address(value: str) -> str:
    split_address(value)
    return value


def _is_metadata_server(value: str) -> str:
    return value if value == PEER_TO_PEER else _is_address(value)


class MooncakeStoreOptions(BaseModel):
    """Options of MooncakeStoreConnector."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    host: str = Field("127.0.0.1", min_length=1)
    """Address of this machine by which the others reach it. Stages on several hosts use the one that each was started with."""
    metadata_server: Annotated[str, AfterValidator(_is_metadata_server)] = "http://127.0.0.1:8080/metadata"
    """URL of the store's metadata server, or P2PHANDSHAKE for none."""
    master: Annotated[str, AfterValidator(_is_address)] = "127.0.0.1:50051"
    """Address of the store's master."""
    segment: int = Field(512 * MIB, ge=16 * MIB)
    """Bytes of memory that a sending end lends to the store: room for payloads on their way. A receiving end lends none."""
    localbuf: int = Field(64 * MIB, ge=MIB)
    """Bytes of the client's own buffer. Payloads do not pass through it, so it limits nothing."""
    proto: Literal["tcp", "rdma"] = "tcp"
    """How bytes go from host to host."""
    rdma: str = ""
    """RDMA devices, separated by commas; empty lets the store choose."""
    setup_timeout_s: float = Field(30.0, gt=0, le=600)
    """How long a start waits for the store to be there."""
