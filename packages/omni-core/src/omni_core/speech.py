"""How a pipeline that speaks a given text tells the server and the Python API what it accepts.

A pipeline names a `SpeechAdapter` (`PipelineConfig.speech`). The adapter reads facts from the checkpoint's JSON files, offers
them as `SpeechTraits`, and turns a checked `SpeechPrompt` into the inputs of the entry stage. It runs in the server's process
and imports neither torch nor vLLM. HTTP, WebSocket and the Python API go through the same adapter, so that one rule decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from omni_core.errors import RequestError
from omni_core.suggest import way_out

if TYPE_CHECKING:
    import numpy as np

    from omni_core.model_info import ModelInfo
    from omni_core.payload import Payload


@dataclass(frozen=True)
class SpeechTraits:
    """What a speaking pipeline accepts and makes."""

    sample_rate: int
    channels: int
    voices: tuple[str, ...] = ()
    """Built-in voices, in the model's spelling; matched without case."""
    default_voice: str | None = None
    languages: tuple[str, ...] = ()
    """Accepted values of `language`, matched without case; empty where the model reads any name."""
    task_types: tuple[str, ...] = ()
    """The tasks of this checkpoint, such as `CustomVoice`."""
    accepts: frozenset[str] = frozenset()
    """Fields of SpeechPrompt that have an effect besides `text`; setting another one is an error."""
    clones: bool = False
    """Whether reference audio is accepted."""
    min_reference_s: float = 1.0
    max_reference_s: float = 30.0
    reference_channels: int = 1
    """Channels of a reference that the model can use; a recording with more is averaged to mono."""
    reference_needs_text: bool = False
    """Whether a reference must come with its words, unless `x_vector_only_mode` is true."""
    max_text_chars: int = 20_000
    max_instructions_chars: int = 500
    max_new_tokens: int = 4096
    samples_per_frame: int = 1


@dataclass(frozen=True)
class ReferenceAudio:
    """A voice to imitate: float32 samples in [-1, 1]."""

    samples: np.ndarray[Any, Any]
    """[n], or [n, channels] where the traits' `reference_channels` is more than 1."""
    sample_rate: int


@dataclass(frozen=True)
class SpeechPrompt:
    """What a user asks to be spoken. Field names are those of the HTTP API (AP-01); None means not given."""

    text: str
    voice: str | None = None
    language: str | None = None
    instructions: str | None = None
    task_type: str | None = None
    ref_audio: ReferenceAudio | None = None
    ref_text: str | None = None
    ref_audio_2: ReferenceAudio | None = None
    """The voice of a second speaker, for models of dialogues."""
    x_vector_only_mode: bool | None = None
    speaker_embedding: tuple[float, ...] | None = None
    non_streaming_mode: bool | None = None
    ambient_sound: str | None = None
    sound_event: str | None = None
    quality: str | None = None
    duration_seconds: float | None = None
    max_new_tokens: int | None = None
    seed: int | None = None
    initial_codec_chunk_frames: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedSpeech:
    """A prompt as the pipeline takes it."""

    inputs: Payload
    """Inputs of the entry stage."""
    sampling: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Sampling parameters that follow from the prompt, by stage id: `max_tokens`, `seed`."""


class SpeechAdapter(ABC):
    """Check speech prompts against one checkpoint and turn them into inputs.

    Args:
        model: The checkpoint.
        options: What the deployment says of speech (`ResolvedPipeline.values`): `tts_max_instructions_length`, the most
            characters of `instructions`, and `custom_voice_dir`. Also `stages`, the resolved stages, of which one may have
            another checkpoint (`model`) or other values of its configuration (`hf_overrides`). A key that is not there leaves
            the matter to the model.
    """

    def __init__(self, model: ModelInfo, options: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.options = dict(options or {})

    @property
    @abstractmethod
    def traits(self) -> SpeechTraits:
        """What this checkpoint accepts and makes."""

    @abstractmethod
    def prepare(self, prompt: SpeechPrompt) -> PreparedSpeech:
        """Return the prompt as inputs of the entry stage.

        Raises:
            RequestError: A field cannot be used; `param` names it and the hint lists what can.
        """


def as_speech_prompt(prompt: SpeechPrompt | Mapping[str, Any] | str) -> SpeechPrompt:
    """Return a prompt as a SpeechPrompt; a mapping has its fields by name, a string is its text.

    Raises:
        RequestError: A name is unknown, or there is no text.
    """
    if isinstance(prompt, SpeechPrompt):
        return prompt
    if isinstance(prompt, str):
        return SpeechPrompt(prompt)
    known = [item.name for item in fields(SpeechPrompt)]
    for name in prompt:
        if name not in known:
            raise RequestError(f"a speech prompt has no field {name!r}", param=str(name), hint=way_out(name, known, "fields"))
    if not isinstance(prompt.get("text"), str):
        raise RequestError("a speech prompt needs `text`, a string", param="text", hint="pass {'text': ...}")
    values = dict(prompt)
    if isinstance(values.get("speaker_embedding"), list):
        values["speaker_embedding"] = tuple(values["speaker_embedding"])
    return SpeechPrompt(**values)
