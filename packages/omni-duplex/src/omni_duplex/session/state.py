"""What a session remembers. Only the reducer changes it; nothing here waits, reads a clock or does input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from omni_duplex.model import Capabilities, Fence, Samples, SessionConfig


class Life(StrEnum):
    """Whether the session is there for a client. Its slot is held from the first of these until `closed`."""

    ADMITTING = "admitting"
    ATTACHED = "attached"
    DETACHED = "detached"
    """Its socket is gone; the client may come back until the grace is over."""
    CLOSING = "closing"
    CLOSED = "closed"


class Input(StrEnum):
    """Whether the user speaks."""

    IDLE = "idle"
    SPEAKING = "speaking"


class Speaking(StrEnum):
    """Whether the model speaks."""

    SILENT = "silent"
    RESPONDING = "responding"
    DRAINING = "draining"
    """All of an answer is made and some of it is still to be played."""


@dataclass(frozen=True)
class Limits:
    """What a session may use. Names are those of `duplex_session` (DX-02)."""

    idle_ttl_s: float | None = 300.0
    disconnect_grace_s: float = 30.0
    reaper_interval_s: float = 5.0
    max_pending_input_bytes_per_session: int = 16 * 1024**2
    max_pending_turns_per_session: int = 4
    history_audio_bytes: int = 64 * 1024**2
    """Audio and images of the user that the conversation keeps; of older turns only the words are kept."""
    history_chars: int = 4 * 1024**2
    """Characters of text in the conversation from which on a client may put nothing more into it."""
    history_items: int = 10_000
    """The same for its items."""


PartType = Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]


@dataclass
class Part:
    """One piece of an item's content."""

    type: PartType
    text: str = ""
    """The text, or the words of audio as far as they are known."""
    audio: Samples | None = None
    """What the user said; answers keep no audio."""
    audio_ms: float = 0.0
    image_url: str = ""
    marks: list[tuple[float, str]] = field(default_factory=list)
    """Words of an answer, each with how much audio there was before it."""
    played_ms: float | None = None
    """How much of an answer was heard, where that is known to be less than all."""

    @property
    def heard_text(self) -> str:
        """The words whose audio was heard; all of them where nothing was cut."""
        if self.played_ms is None or not self.marks:
            return self.text
        return "".join(text for start, text in self.marks if start < self.played_ms)


@dataclass
class Item:
    """One entry of the conversation."""

    id: str
    type: Literal["message", "function_call", "function_call_output"]
    role: Literal["system", "user", "assistant"] | None = None
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    content: list[Part] = field(default_factory=list)
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str = ""


@dataclass
class Response:
    """One answer of the model."""

    id: str
    fence: Fence
    options: Mapping[str, Any]
    modalities: tuple[str, ...]
    joins: bool
    """Whether it becomes part of the conversation."""
    items: list[Item] = field(default_factory=list)
    part: Part | None = None
    """The part that grows, of the last item."""
    started: float | None = None
    """When its first audio left."""


@dataclass
class Session:
    """Everything about one session but its audio in flight."""

    id: str
    capabilities: Capabilities
    config: SessionConfig
    limits: Limits = field(default_factory=Limits)
    resumable: bool = False
    """Whether the client can come back: the model allows it and the dialect knows how."""
    life: Life = Life.ADMITTING
    generation: int = 0
    """Number of the socket that it is attached to; a later one takes over."""
    ending: str = ""
    """Why it closes."""
    ended: bool = False
    """Whether its last event was sent."""

    input: Input = Input.IDLE
    heard: int = 0
    """Samples appended so far: the timeline."""
    buffer: list[Samples] = field(default_factory=list)
    """Audio since the last commit, for turn models."""
    uncommitted: int = 0
    """Samples since the last commit."""
    input_item_id: str = ""
    """Id that the speech under way will get."""
    pending_bytes: int = 0
    """Bytes of audio that are reserved: not yet heard by a unit model, or not yet committed."""
    pending_turns: int = 0
    """Turns that wait for an answer while another is given."""

    speaking: Speaking = Speaking.SILENT
    response: Response | None = None
    """The answer that is made, or that is played."""
    fence: Fence = field(default_factory=lambda: Fence(""))

    items: list[Item] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)
    count: int = 0
    """For ids."""

    def __post_init__(self) -> None:
        if not self.fence.session_id:
            self.fence = Fence(self.id)

    def new_id(self, kind: str) -> str:
        """Return an id that this session has not given before, such as `item_3f1c0007`."""
        self.count += 1
        return f"{kind}_{self.id[-8:]}{self.count:04x}"

    def find(self, item_id: str) -> Item | None:
        """Return an item of the conversation."""
        return next((item for item in self.items if item.id == item_id), None)

    @property
    def last_item_id(self) -> str | None:
        """Id of the conversation's last item."""
        return self.items[-1].id if self.items else None

    def ms(self, samples: int) -> int:
        """Return samples of the user's audio as milliseconds."""
        return round(samples * 1000 / self.capabilities.input_rate)

    @property
    def is_turn_model(self) -> bool:
        """Whether the model answers committed turns."""
        return self.capabilities.turn_policy == "commit"

    @property
    def is_over(self) -> bool:
        """Whether nothing of the client is taken any more."""
        return self.life in (Life.CLOSING, Life.CLOSED)


def joined(chunks: list[Samples]) -> Samples:
    """Return pieces of audio as one."""
    return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
