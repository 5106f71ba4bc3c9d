"""The bodies that requests have: their fields, their types, and errors that name the field."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from omni_core.errors import RequestError

INT64_MAX = 2**63 - 1
MAX_EMBEDDING = 8192
MAX_VOICE_CHARS = 1000

Model = TypeVar("Model", bound=BaseModel)


def _finite(values: list[float]) -> list[float]:
    if not all(math.isfinite(value) for value in values):
        raise ValueError("every number must be finite")
    return values


Embedding = Annotated[list[float], Field(min_length=1, max_length=MAX_EMBEDDING), AfterValidator(_finite)]


def _voice(value: Any) -> str:
    """Return the name of a voice; OpenAI's clients write custom voices as an object with `id`."""
    name = value["id"] if isinstance(value, dict) and set(value) == {"id"} else value
    if not isinstance(name, str) or not name:
        raise ValueError("must be the name of a voice, or an object with its `id`")
    if len(name) > MAX_VOICE_CHARS:  # spellings of names are compared, which takes time by length
        raise ValueError(f"has {len(name)} characters; no voice has a name of more than {MAX_VOICE_CHARS}")
    return name


Voice = Annotated[str, BeforeValidator(_voice)]


class SpeechOptions(BaseModel):
    """How to speak, whatever the text (AP-01). `null` means not given, everywhere."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    """A name that /v1/models lists; the served model if it is not given."""
    voice: Voice | None = None
    """A voice of the model, of the operator, or an uploaded one. `default` leaves the choice to the model."""
    speaker: Voice | None = None
    """Another name of `voice`."""
    instructions: str | None = None
    """How to speak, or for voice design which voice."""
    response_format: Literal["wav", "pcm", "flac", "mp3", "opus", "aac"] | None = None
    """The audio format; wav if it is not given."""
    sample_rate: Annotated[int, Field(gt=0)] | None = None
    """Hz: the model's own rate or a whole fraction of it."""
    speed: Annotated[float, Field(ge=0.25, le=4.0)] | None = None
    """Tempo; other than 1 only for whole files."""
    task_type: str | None = None
    language: str | None = None
    ref_audio: str | list[str] | None = None
    """A voice to imitate: a data URI, an http(s) URL, a file URL or an absolute path; or a list with one of them."""
    ref_text: str | None = None
    """What the reference audio says."""
    ref_audio_2: str | None = None
    """The voice of a second speaker, for models of dialogues."""
    ambient_sound: str | None = None
    """What is heard behind the voice, such as rain."""
    sound_event: str | None = None
    """A sound to be heard beside the speech."""
    quality: str | None = None
    """How good the recording should sound."""
    duration_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """About how long the speech should be."""
    x_vector_only_mode: bool | None = None
    speaker_embedding: Embedding | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    """The most frames to make."""
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    initial_codec_chunk_frames: Annotated[int, Field(ge=0)] | None = None
    """Frames in the first piece of a stream."""
    non_streaming_mode: bool | None = None
    """How the prompt is built; has nothing to do with the answer."""
    sampling_params_list: list[dict[str, Any]] | None = None
    """Sampling parameters, one object for each stage."""
    extra_params: dict[str, Any] | None = None
    """Parameters that only this model knows."""

    @model_validator(mode="after")
    def _one_voice(self) -> Self:
        if self.voice is not None and self.speaker is not None and self.voice != self.speaker:
            raise ValueError("`voice` and `speaker` are two names of one field; give one")
        if self.speaker_embedding is not None and self.ref_audio is not None:
            raise ValueError("`speaker_embedding` and `ref_audio` are two ways to give a voice; give one")
        return self

    @property
    def voice_name(self) -> str | None:
        """The voice asked for; the placeholder `default` is none."""
        name = self.voice if self.voice is not None else self.speaker
        return None if name is not None and name.lower() == "default" else name


class SpeechRequest(SpeechOptions):
    """The body of POST /v1/audio/speech (AP-01)."""

    input: str
    """The text to speak."""
    stream: bool | None = None
    """Whether to send audio as it is made; without `stream_format`, as server-sent events."""
    stream_format: Literal["sse", "audio"] | None = None
    """`audio` streams the bytes of the format, `sse` streams events with base64."""

    @property
    def delivery(self) -> Literal["whole", "audio", "sse"]:
        """How the answer leaves (AP-03)."""
        if self.stream_format is not None:
            return self.stream_format
        return "sse" if self.stream else "whole"


class SessionConfig(SpeechOptions):
    """The message `session.config` of WS /v1/audio/speech/stream (AP-06)."""

    type: Literal["session.config"]
    stream_audio: bool | None = None
    """Whether a sentence's audio leaves as it is made, or as one file; by default, where format and speed allow it."""
    split_granularity: Literal["none", "sentence", "clause"] = "sentence"
    """What is one request; `none` waits for `input.done`."""


def _consent(text: str) -> str:
    if text.strip().lower() in ("", "false", "no", "0", "none", "null"):
        raise ValueError("the person whose voice it is must have agreed; say who did, or the id of the recorded consent")
    return text


class VoiceUpload(BaseModel):
    """The form of POST /v1/audio/voices, besides its file `audio_sample`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    """How requests will call the voice."""
    consent: Annotated[str, Field(max_length=500), AfterValidator(_consent)]
    """That its owner agreed: a text, or the id of a recorded consent."""
    type: Literal["audio_sample"] = "audio_sample"
    """What OpenAI's clients say."""
    ref_text: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    """What the recording says."""
    speaker_description: Annotated[str, Field(max_length=500)] | None = None
    speaker_embedding: Embedding | None = None
    """The voice as numbers, instead of a recording."""


def parse(model: type[Model], body: bytes) -> Model:
    """Return the JSON `body` as a checked `model`.

    Raises:
        RequestError: It is not JSON, or a field is wrong; `param` names the first wrong field.
    """
    return validated(model, load_object(body))


def load_object(body: bytes | str) -> dict[str, Any]:
    """Return the JSON object that `body` is.

    Raises:
        RequestError: It is something else.
    """
    try:
        data = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError too
        raise RequestError(f"the body is not valid JSON: {str(error)[:200] or 'nested too deeply'}") from error
    if not isinstance(data, dict):
        raise RequestError("the body must be a JSON object", hint='send {"input": "..."} and so on')
    return data


def validated(model: type[Model], data: dict[str, Any]) -> Model:
    """Return `data` as a checked `model`.

    Raises:
        RequestError: A field is wrong; `param` names the first wrong field.
    """
    _refuse_odd_text(data, "")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _as_request_error(model, error) from error


def refuse_constant(name: str) -> float:
    """Refuse NaN and the infinities, which Python reads and writes, and other readers of JSON do not take."""
    raise ValueError(f"{name} is not JSON")


def _refuse_odd_text(value: Any, place: str) -> None:
    """Refuse texts that are no text: half a surrogate pair, and NUL, which ends strings in other languages."""
    if isinstance(value, str):
        if "\0" in value:
            raise RequestError(f"`{place}` contains a NUL character", param=place)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            position = error.start
            raise RequestError(f"`{place}` has half of a surrogate pair at character {position}", param=place) from error
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_odd_text(key, place or "the body")
            _refuse_odd_text(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_odd_text(item, f"{place}.{index}")


def _as_request_error(model: type[BaseModel], error: ValidationError) -> RequestError:
    """Return pydantic's findings as one error that names every wrong field."""
    unknown = [str(item["loc"][0]) for item in error.errors() if item["type"] == "extra_forbidden" and len(item["loc"]) == 1]
    if unknown:
        hints = [_did_you_mean(name, model) for name in unknown]
        names = ", ".join(f"`{name[:60]}`" for name in unknown[:10])
        return RequestError(f"unknown fields: {names}", param=unknown[0][:60], hint="; ".join(filter(None, hints)))
    faults: dict[str, list[str]] = {}
    for item in error.errors():
        name = str(item["loc"][0]) if item["loc"] else ""
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = f"unknown field `{str(item['loc'][-1])[:60]}`"
        faults.setdefault(name, []).append(text[:1].lower() + text[1:])
    texts = [f"`{name}`: {' or '.join(dict.fromkeys(items))}" if name else items[0] for name, items in faults.items()]
    return RequestError("; ".join(texts), param=next(iter(faults)) or None)


def _did_you_mean(name: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(name[:100], model.model_fields, n=1)  # it takes time by length
    return f"did you mean `{close[0]}`?" if close else ""
