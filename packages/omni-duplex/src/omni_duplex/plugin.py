"""What an author of a duplex model imports, and what omni-duplex itself offers to the hooks of omni-core."""

from __future__ import annotations

from collections.abc import Iterable

from omni_core.commands import CommandEntry
from omni_core.hookspecs import hookimpl
from omni_duplex.errors import DuplexError
from omni_duplex.model import (
    AudioIn,
    AudioOut,
    Capabilities,
    DuplexModel,
    DuplexStream,
    Fence,
    Heard,
    Listen,
    Message,
    Output,
    ReplicaPort,
    ResponseOptions,
    SessionConfig,
    TextOut,
    ToolCall,
    TurnDetection,
    TurnEnd,
)

__all__ = [
    "AudioIn",
    "AudioOut",
    "Capabilities",
    "DuplexError",
    "DuplexModel",
    "DuplexStream",
    "Fence",
    "Heard",
    "Listen",
    "Message",
    "Output",
    "ReplicaPort",
    "ResponseOptions",
    "SessionConfig",
    "TextOut",
    "ToolCall",
    "TurnDetection",
    "TurnEnd",
    "hookimpl",
]


@hookimpl
def omni_commands() -> Iterable[CommandEntry]:
    """Offer `omni vad`."""
    return [
        CommandEntry(
            "vad", "fetch the weights of the speech detector for realtime sessions", "omni_duplex.commands.vad:command"
        )
    ]
