"""The body of POST /v1/chat/completions: its fields, and what of it goes where.

Sampling parameters go to the stage that writes; what says what to write goes to its renderer; the rest is the server's. A field
that is not here is refused: nothing is accepted that has no effect, apart from the labels that `_LABELS` lists.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from omni_core.chat import ServedChat
from omni_core.errors import RequestError
from omni_server.protocol import INT64_MAX, Voice

MAX_CHOICES = 16
"""Most answers to one request; each is a request of its own in the engine."""
AUDIO_FORMATS = {"wav": "wav", "mp3": "mp3", "flac": "flac", "opus": "opus", "aac": "aac", "pcm16": "pcm", "pcm": "pcm"}
"""Values of `audio.format`, and the encoder of each."""

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "bad_words",
    "allowed_token_ids",
    "logit_bias",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
"""Fields that are sampling parameters under the same name."""
_CONVERSATION = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "reasoning_effort",
    "include_reasoning",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
)
"""Fields that the renderer reads under the same name."""
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""Fields that OpenAI's clients send and that have no effect here."""


class AudioOptions(BaseModel):
    """How a spoken answer sounds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    voice: Voice | None = None
    """A voice of the model; its default one if it is not given."""
    format: Literal["wav", "mp3", "flac", "opus", "aac", "pcm16", "pcm"] | None = None
    """wav if it is not given, pcm16 in a stream, which takes no other."""


class StreamOptions(BaseModel):
    """What a stream says beside the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    """Whether a last chunk tells the tokens used."""
    include_obfuscation: bool | None = None
    """OpenAI's clients send it; chunks are never padded here."""


class OmniOptions(BaseModel):
    """What only this server has."""

    model_config = ConfigDict(extra="forbid", strict=True)

    delta_style: Literal["openai", "modality"] = "openai"
    """`modality`: text and audio are choices of their own, as vLLM-Omni 0.30 has them."""


class MmProcessorKwargs(BaseModel):
    """What a request may say to the processor of its files."""

    model_config = ConfigDict(extra="forbid", strict=True)

    use_audio_in_video: bool | None = None
    """Whether the sound of videos is heard, too."""


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions. `null` means not given, everywhere."""

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: list[Any]
    model: str | None = None
    modalities: list[str] | None = None
    """text, or text and audio; text if it is not given."""
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """The most tokens to write; another name of `max_tokens`."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # What vLLM's server has beyond OpenAI's.
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, str]] | None = None
    mm_processor_kwargs: MmProcessorKwargs | None = None

    # What only this server has.
    use_audio_in_video: bool | None = None
    """The same as in `mm_processor_kwargs`."""
    sampling_params_list: list[dict[str, Any] | None] | None = None
    """Sampling parameters, one object for each stage; over the other fields of this body."""
    omni: OmniOptions | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> ChatRequest:
        if not self.messages:
            raise RequestError("`messages` is empty", param="messages", hint="send at least one message")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise RequestError(
                "`max_tokens` and `max_completion_tokens` are two names of one field", param="max_tokens", hint="send one"
            )
        if self.top_logprobs and not self.logprobs:
            raise RequestError("`top_logprobs` needs `logprobs`", param="top_logprobs", hint="set logprobs to true")
        if self.stream_options is not None and not self.stream:
            raise RequestError("`stream_options` needs `stream`", param="stream_options", hint="set stream to true")
        return self

    @property
    def delta_style(self) -> str:
        """How text and audio share an answer."""
        return self.omni.delta_style if self.omni is not None else "openai"

    def speaks(self, chat: ServedChat) -> bool:
        """Return whether the answer is spoken.

        Raises:
            RequestError: `modalities` holds what the pipeline does not make, or does not fit `audio` and `n`.
        """
        wanted = ["text"] if self.modalities is None else self.modalities
        made = ", ".join(chat.outputs)
        if not wanted:
            raise RequestError("`modalities` is empty", param="modalities", hint=f"the model makes {made}")
        for name in wanted:
            if name not in chat.outputs:
                message = f"the served model makes no {name[:60]!r}"
                raise RequestError(message, param="modalities", hint=f"it makes {made}")
        speaks = "audio" in wanted
        if self.audio is not None and not speaks:
            hint = 'set modalities to ["text", "audio"]' if "audio" in chat.outputs else f"the model makes {made}"
            raise RequestError("`audio` is given, but no audio is asked for", param="audio", hint=hint)
        if speaks and (self.n or 1) > 1:
            raise RequestError("only one answer is spoken at a time", param="n", hint="set n to 1, or ask for text alone")
        return speaks

    def audio_format(self) -> str:
        """Return the name of the spoken answer's encoder.

        Raises:
            RequestError: It cannot be streamed.
        """
        given = self.audio.format if self.audio is not None else None
        if self.stream:
            if given not in (None, "pcm16", "pcm"):
                raise RequestError(f"{given} cannot be streamed", param="audio.format", hint="set audio.format to pcm16")
            return "pcm"
        return AUDIO_FORMATS[given or "wav"]

    def sampling(self) -> dict[str, Any]:
        """Return the sampling parameters of the stage that writes."""
        found = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        if (limit := self.max_completion_tokens or self.max_tokens) is not None:
            found["max_tokens"] = limit
        if self.logprobs:
            found["logprobs"] = self.top_logprobs or 0
        return found

    def conversation(self, messages: list[Any], voice: str | None) -> dict[str, Any]:
        """Return what the renderer reads: the messages, and how to write the answer."""
        found = {name: value for name in _CONVERSATION if (value := getattr(self, name)) is not None}
        heard = self.use_audio_in_video
        if heard is None and self.mm_processor_kwargs is not None:
            heard = self.mm_processor_kwargs.use_audio_in_video
        if heard is not None:
            found["mm_processor_kwargs"] = {"use_audio_in_video": heard}
        if self.continue_final_message and self.add_generation_prompt is None:
            found["add_generation_prompt"] = False
        return {**found, "messages": messages, **({"voice": voice} if voice is not None else {})}


def stage_sampling(request: ChatRequest, chat: ServedChat, choice: int = 0) -> list[dict[str, Any]]:
    """Return sampling parameters for each stage; the seed is every stage's, and each further choice has one of its own.

    Raises:
        RequestError: `sampling_params_list` has not one entry for each stage.
    """
    given = request.sampling_params_list or [None] * chat.stages
    if len(given) != chat.stages:
        raise RequestError(
            f"sampling_params_list has {len(given)} entries, but the pipeline has {chat.stages} stages",
            param="sampling_params_list",
            hint="send one object for each stage, {} for a stage that keeps its defaults",
        )
    own = request.sampling()
    if request.seed is not None:
        own["seed"] = (request.seed + choice) if request.seed + choice <= INT64_MAX else request.seed - choice
    elif choice:
        own["seed"] = secrets.randbits(32)  # a stage may have a seed of its own, with which all answers would be one
    seed = {"seed": own["seed"]} if "seed" in own else {}
    return [{**(own if stage == chat.text_stage else seed), **(given[stage] or {})} for stage in range(chat.stages)]
