"""What happens to a session (the reducer's inputs), and what the reducer wants done (its effects)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_duplex.errors import DuplexError
from omni_duplex.model import Fence, Message, Output, ResponseOptions, Samples, SessionConfig
from omni_duplex.session.state import Item

# -- from the client ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """Something that the client said."""

    event_id: str | None = field(default=None, kw_only=True)
    """The client's own id of it; an error that it causes carries it."""


@dataclass(frozen=True)
class Append(Command):
    """More of the user's audio, at the model's input rate."""

    pcm: Samples


@dataclass(frozen=True)
class Commit(Command):
    """The user's turn is over, says the client."""


@dataclass(frozen=True)
class ClearInput(Command):
    """Forget the audio since the last commit."""


@dataclass(frozen=True)
class CreateResponse(Command):
    """Answer now."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `response` that are not the session's: `instructions`, `tools`, `output_modalities`, `metadata` ..."""
    input: tuple[Item, ...] | None = None
    """What to answer in place of the conversation."""


@dataclass(frozen=True)
class CancelResponse(Command):
    """Stop the answer."""

    response_id: str | None = None


@dataclass(frozen=True)
class ClearOutput(Command):
    """Stop the answer and what of it is still to be played."""


@dataclass(frozen=True)
class CreateItem(Command):
    """Put an item into the conversation."""

    item: Item
    previous_item_id: str | None = None
    """The item before it, `root` for the beginning, None for the end."""


@dataclass(frozen=True)
class DeleteItem(Command):
    """Take an item out of the conversation."""

    item_id: str


@dataclass(frozen=True)
class RetrieveItem(Command):
    """Show an item."""

    item_id: str


@dataclass(frozen=True)
class TruncateItem(Command):
    """Take back what the user did not hear of an answer."""

    item_id: str
    content_index: int
    audio_end_ms: int


@dataclass(frozen=True)
class Update(Command):
    """Change the session's settings; they are checked already."""

    config: SessionConfig


@dataclass(frozen=True)
class Playback(Command):
    """The client has played an answer up to here."""

    item_id: str
    played_ms: int


@dataclass(frozen=True)
class Close(Command):
    """End the session."""

    reason: str = "client"


@dataclass(frozen=True)
class Touch(Command):
    """Nothing but a sign of life."""


@dataclass(frozen=True)
class Acknowledge(Command):
    """The client has every event up to this number."""

    seq: int


@dataclass(frozen=True)
class Signal(Command):
    """The client itself has found that its user began or stopped to speak."""

    speaks: bool


# -- from the model, the ear and the clock -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Produced:
    """The model gave something."""

    output: Output


@dataclass(frozen=True)
class Failed:
    """The model failed while it worked for a fence."""

    fence: Fence
    error: DuplexError


@dataclass(frozen=True)
class Consumed:
    """The model has heard so many bytes of audio."""

    nbytes: int


@dataclass(frozen=True)
class SpeechStarted:
    """The user began to speak."""

    at_ms: int
    """On the timeline of all audio that was appended."""


@dataclass(frozen=True)
class SpeechStopped:
    """The user fell silent."""

    at_ms: int


@dataclass(frozen=True)
class Transcribed:
    """The words of a user's item are known, or why they are not."""

    item_id: str
    text: str = ""
    seconds: float = 0.0
    error: DuplexError | None = None


@dataclass(frozen=True)
class Timer:
    """A timer that was armed has run out."""

    name: str
    at: float


# -- the session's life ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attached:
    """A socket is there."""

    generation: int


@dataclass(frozen=True)
class Detached:
    """A socket is gone."""

    generation: int


@dataclass(frozen=True)
class Overflowed:
    """The client reads too slowly: what waits for it is more than may."""


@dataclass(frozen=True)
class ReplicaLost:
    """A replica of the session's group is dead (DP-10)."""

    reason: str


@dataclass(frozen=True)
class Cleaned:
    """The model's stream was closed, or could not be."""

    ok: bool


Event = (
    Command
    | Produced
    | Failed
    | Consumed
    | SpeechStarted
    | SpeechStopped
    | Transcribed
    | Timer
    | Attached
    | Detached
    | Overflowed
    | ReplicaLost
    | Cleaned
)

# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Tell the client. The event is in the form of the realtime API, without `event_id`; audio is not encoded yet."""

    event: dict[str, Any]


@dataclass(frozen=True)
class Feed:
    """Let a unit model hear this."""

    pcm: Samples


@dataclass(frozen=True)
class Respond:
    """Let a turn model answer."""

    fence: Fence
    history: Sequence[Message]
    options: ResponseOptions


@dataclass(frozen=True)
class Interrupt:
    """Drop whatever the model does for an older fence."""

    fence: Fence


@dataclass(frozen=True)
class Configure:
    """Hand changed settings to the model and the ear."""

    config: SessionConfig


@dataclass(frozen=True)
class Transcribe:
    """Find the words of what the user said."""

    item_id: str
    pcm: Samples


@dataclass(frozen=True)
class ForgetInput:
    """Start listening anew: the ear forgets what it heard."""


@dataclass(frozen=True)
class Trim:
    """Forget the events that the client has."""

    seq: int


@dataclass(frozen=True)
class Arm:
    """Send `Timer(name, at)` at this time. A timer of the same name that waits is replaced."""

    name: str
    at: float


@dataclass(frozen=True)
class Disarm:
    """Forget a timer."""

    name: str


@dataclass(frozen=True)
class Cleanup:
    """Close the model's stream and tell how it went by `Cleaned`."""


@dataclass(frozen=True)
class Hangup:
    """Close the socket once everything was sent."""

    code: int
    reason: str


@dataclass(frozen=True)
class Free:
    """Give the session's slot back; it is over."""


Effect = (
    Send | Feed | Respond | Interrupt | Configure | Transcribe | ForgetInput | Trim | Arm | Disarm | Cleanup | Hangup | Free
)
