"""What a duplex model is to a session: its capabilities, the audio it takes, and what it gives.

A model is made once for each frontend process, a stream once for each session. Two ways of talking are known. A frame or unit
model hears a unit of audio at a time and says at once what comes of it (`step`). A turn model is asked when the user's turn is
over (`respond`). Everything that a stream yields carries the fence under which it was asked for, so that what belongs to a
cancelled answer can be told and dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from omni_core.capabilities import DuplexCapabilities
from omni_duplex.errors import DuplexError

if TYPE_CHECKING:
    import numpy as np

    from omni_core.request import OmniOutput

    Samples = np.ndarray[Any, np.dtype[np.float32]]
    """Mono audio, float32 [n] in [-1, 1]."""
else:
    Samples = Any


@dataclass(frozen=True, slots=True)
class Fence:
    """What an output belongs to. The epoch grows when an answer is cancelled, the turn when one is complete."""

    session_id: str
    epoch: int = 0
    turn: int = 0


@dataclass(frozen=True)
class Capabilities:
    """What a duplex model can do. A session offers its client no more than this."""

    turn_policy: Literal["model", "commit"] = "model"
    """Who decides when the model speaks: the model itself, unit by unit, or the end of the user's turn."""
    unit_ms: int = 80
    """Length of the units that `step` gets, for the turn policy `model`."""
    input_rate: int = 24_000
    """Hz of the audio that the model hears."""
    output_rate: int = 24_000
    """Hz of the audio that the model makes."""
    barge_in: bool = True
    """Whether the model can be interrupted."""
    truncate: bool = True
    """Whether what the user did not hear can be taken back (`conversation.item.truncate`)."""
    session_resume: bool = True
    """Whether a client may come back to its session after its connection broke."""
    sessions_per_replica: int = 1
    """Sessions that one replica holds at once."""
    tools: bool = False
    """Whether the model calls functions."""
    text_input: bool = False
    """Whether the user may write instead of speaking."""
    image_input: bool = False
    instructions: bool = True
    """Whether the model follows `instructions`."""
    text_output: bool = False
    """Whether the model can answer without audio."""
    voices: tuple[str, ...] = ()
    """Voices by name, the first one the default; empty where there is nothing to choose."""
    silence_fills: bool = True
    """Whether a unit model hears silence while its client sends nothing. A model that counts time needs it."""

    @property
    def declared(self) -> DuplexCapabilities:
        """The part that a deployment depends on, which the pipeline declares too."""
        return DuplexCapabilities(
            supports_session_resume=self.session_resume,
            supports_multi_session_same_replica=self.sessions_per_replica > 1,
        )


@dataclass(frozen=True)
class TurnDetection:
    """How the end of the user's turn is found. Field names are those of the realtime API."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


@dataclass(frozen=True)
class SessionConfig:
    """What is in force in a session, whatever the dialect called it."""

    model: str = ""
    instructions: str = ""
    voice: str | None = None
    output_modalities: tuple[str, ...] = ("audio",)
    turn_detection: TurnDetection | None = field(default_factory=TurnDetection)
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: Any = "auto"
    max_output_tokens: int | None = None
    """None: as many as the model makes."""
    transcription: Mapping[str, Any] | None = None
    """Whether and how the user's words are written down; None: not."""
    truncation: Any = "auto"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What only the model knows: `extra_body` of the session."""


@dataclass(frozen=True)
class Content:
    """One part of a message in a conversation."""

    type: Literal["text", "audio", "image"]
    text: str = ""
    """The text, or the words of the audio as far as they are known."""
    audio: Samples | None = None
    """What the user said, at the model's input rate."""
    image_url: str = ""
    """A data URI."""


@dataclass(frozen=True)
class Message:
    """One entry of a conversation as a turn model sees it: only what was really heard or said."""

    role: Literal["system", "user", "assistant", "tool"]
    content: tuple[Content, ...] = ()
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    """Of an assistant's call of a function, JSON."""


@dataclass(frozen=True)
class ResponseOptions:
    """What holds for one answer, the session's settings filled in."""

    instructions: str
    output_modalities: tuple[str, ...]
    voice: str | None
    tools: tuple[Mapping[str, Any], ...]
    tool_choice: Any
    max_output_tokens: int | None


# -- what a stream gets and gives --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AudioIn:
    """One unit of the user's audio."""

    pcm: Samples
    sample_rate: int
    fence: Fence


@dataclass(frozen=True)
class AudioOut:
    """Audio to play."""

    pcm: Samples
    sample_rate: int
    fence: Fence


@dataclass(frozen=True)
class TextOut:
    """What the model says, as text; words of the audio where there is audio."""

    text: str
    fence: Fence


@dataclass(frozen=True)
class Heard:
    """What the user said, as text, in the model's own opinion."""

    text: str
    fence: Fence
    final: bool = True


@dataclass(frozen=True)
class ToolCall:
    """A call of a function, complete."""

    name: str
    arguments: str
    """JSON."""
    call_id: str
    fence: Fence


@dataclass(frozen=True)
class Listen:
    """The model goes on listening: this unit gives nothing to say."""

    fence: Fence


@dataclass(frozen=True)
class TurnEnd:
    """The model's answer is complete."""

    fence: Fence
    reason: Literal["stop", "length"] = "stop"
    usage: Mapping[str, int] = field(default_factory=dict)
    """`input_text_tokens`, `input_audio_tokens`, `output_text_tokens`, `output_audio_tokens`, as far as they are known."""


Output = AudioOut | TextOut | Heard | ToolCall | Listen | TurnEnd


class ReplicaPort(Protocol):
    """The replica group of a session: how a stream reaches the pipeline. Requests stay on the replicas of the group."""

    group: int
    """Number of the group."""

    def generate(self, inputs: Any, **options: Any) -> AsyncIterator[OmniOutput]:
        """Run one request through the pipeline; takes what `AsyncOmni.generate` takes. Closing the iterator aborts it."""
        ...

    def open(self, inputs: Any, **options: Any) -> StreamingRequest:
        """Begin a request whose input arrives while it runs; takes what `AsyncOmni.open` takes."""
        ...


class StreamingRequest(Protocol):
    """A request that is fed while it answers."""

    async def push(self, payload: Mapping[str, Any], final: bool = False) -> None:
        """Give the entry stage its next payload; waits while too many are under way."""
        ...

    def outputs(self) -> AsyncIterator[OmniOutput]:
        """Return its outputs, in order; the last has `finished`."""
        ...

    async def close(self) -> None:
        """Abort it. May be called twice."""
        ...


class DuplexStream(ABC):
    """One session's model state. Its methods are never called at the same time, except `cancel` beside `respond`."""

    def step(self, unit: AudioIn) -> AsyncIterator[Output]:
        """Hear one unit and yield what comes of it: for the turn policy `model`."""
        raise TypeError(f"{type(self).__name__} has no step, so it is no unit model")

    def respond(self, history: Sequence[Message], options: ResponseOptions, fence: Fence) -> AsyncIterator[Output]:
        """Answer a conversation, ending with TurnEnd: for the turn policy `commit`. Closing the iterator stops the answer."""
        raise TypeError(f"{type(self).__name__} has no respond, so it is no turn model")

    async def cancel(self, new_fence: Fence) -> None:
        """Drop the answer under way. It must be quick; what still comes under an older fence is dropped by the session."""
        return

    def validate_update(self, old: SessionConfig, new: SessionConfig) -> None:  # noqa: B027 - most models take any change
        """Check a change of this session's settings, behind what the model said of it.

        Raises:
            DuplexError: The change cannot be made now.
        """

    async def configure(self, config: SessionConfig) -> None:
        """Take settings that changed while the session runs; a change that cannot be made is refused by `validate_update`."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Free what the session holds. May be called twice; a failure is tried again until it succeeds."""


class DuplexModel(ABC):
    """A duplex model in a frontend process: checks configurations and opens streams."""

    plugin_id: str

    @abstractmethod
    def capabilities(self, replica_cap: int) -> Capabilities:
        """Return what the model can do with so many sessions on a replica."""

    def validate(self, config: SessionConfig) -> None:  # noqa: B027 - a model may accept every configuration
        """Check a new session's configuration.

        Raises:
            DuplexError: A setting cannot be used; `param` names it. `self.error` makes one.
        """

    def validate_update(self, old: SessionConfig, new: SessionConfig) -> None:
        """Check a change of a running session; by default what `validate` accepts.

        Raises:
            DuplexError: The change cannot be made now.
        """
        self.validate(new)

    @abstractmethod
    async def open(self, config: SessionConfig, replica: ReplicaPort, fence: Fence) -> DuplexStream:
        """Begin a session on a replica group."""

    async def step_many(self, units: Sequence[tuple[DuplexStream, AudioIn]]) -> Sequence[Sequence[Output]]:
        """Hear a unit of each of several sessions at once; only for models that override it.

        Units that arrive within a tick are gathered and given here, so that N sessions cost one forward pass.
        """
        raise TypeError(f"{type(self).__name__} takes one unit at a time")

    async def transcribe(self, pcm: Samples, sample_rate: int, config: SessionConfig, replica: ReplicaPort) -> str:
        """Return the words of what a user said; only for models that override it.

        Args:
            pcm: The user's turn.
            sample_rate: Hz of it.
            config: The session's settings; `transcription` has `language` and `prompt`, as far as the client gave them.
            replica: The session's replica group.
        """
        raise TypeError(f"{type(self).__name__} writes nothing down")

    @property
    def transcribes(self) -> bool:
        """Whether `transcribe` is there."""
        return type(self).transcribe is not DuplexModel.transcribe

    @property
    def batches(self) -> bool:
        """Whether `step_many` is there."""
        return type(self).step_many is not DuplexModel.step_many

    @staticmethod
    def error(code: str, message: str, param: str | None = None) -> DuplexError:
        """Return an error for `validate` to raise."""
        return DuplexError(code, message, param)
