"""A turn model over any pipeline that answers conversations aloud: each answer is one request with the whole conversation.

A model package derives its duplex plugin from `ChatTurnModel`. Tools are off: what the user hears is what the model says.
"""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from omni_core.chat import ServedChat, resolve_voice, served_chat
from omni_core.errors import ConfigError, ContextLengthError, RequestError
from omni_duplex.errors import DuplexError
from omni_duplex.model import (
    AudioOut,
    Capabilities,
    Content,
    DuplexModel,
    DuplexStream,
    Fence,
    Message,
    Output,
    ReplicaPort,
    ResponseOptions,
    Samples,
    SessionConfig,
    TextOut,
    TurnEnd,
)

if TYPE_CHECKING:
    from omni_core.request import OmniOutput
    from omni_core.stage import ResolvedPipeline

_KEPT = 0.5
"""Part of the conversation that is kept when it has become too long, unless the client says another one."""


class ChatTurnModel(DuplexModel):
    """Answer turns with a pipeline's chat.

    Args:
        pipeline: The deployment.

    Raises:
        ConfigError: The pipeline does not hear, or does not speak.
    """

    takes_pipeline = True
    input_rate = 16_000
    """Hz of what the pipeline hears."""

    def __init__(self, pipeline: ResolvedPipeline) -> None:
        chat = served_chat(pipeline)
        if chat is None or "audio" not in chat.traits.inputs or "audio" not in chat.outputs:
            raise ConfigError(
                f"pipeline {pipeline.config.model_type!r} does not answer speech with speech",
                where="session_mode: duplex",
                hint="serve a pipeline that hears and speaks, or set session_mode: turn",
            )
        self._chat: ServedChat = chat
        self._limits = _limits(pipeline, chat.text_stage)

    def capabilities(self, replica_cap: int) -> Capabilities:
        """Return what the pipeline's chat can do, turn by turn."""
        traits = self._chat.traits
        default = traits.default_voice
        others = tuple(voice for voice in traits.voices if voice != default)
        return Capabilities(
            turn_policy="commit",
            input_rate=self.input_rate,
            output_rate=traits.sample_rate,
            sessions_per_replica=replica_cap,
            text_input=True,
            image_input="image" in traits.inputs,
            text_output=True,
            voices=others if default is None else (default, *others),
        )

    def validate(self, config: SessionConfig) -> None:
        """Check the voice, and that nothing is asked for that only other models know.

        Raises:
            DuplexError: There is no such voice, or `extra` has a field.
        """
        try:
            resolve_voice(self._chat.traits, config.voice, "session.audio.output.voice")
        except RequestError as error:
            raise DuplexError("unknown_voice", error.message, error.param, hint=error.hint) from error
        if config.extra:
            name = next(iter(config.extra))
            raise self.error("unknown_parameter", f"the model has no setting {name!r}", f"session.{name}")

    async def transcribe(self, pcm: Samples, sample_rate: int, config: SessionConfig, replica: ReplicaPort) -> str:
        """Return the words of a turn: the pipeline is asked to write them down, as `/v1/audio/transcriptions` asks it."""
        wanted = config.transcription or {}
        ask = self._chat.traits.transcription_prompt
        if language := wanted.get("language"):
            ask += f" The language of the audio is {language}."
        if prompt := wanted.get("prompt"):
            ask += f" Context: {prompt}"
        content = (Content("audio", audio=pcm), Content("text", ask))
        body = {"messages": _Writer(self._limits, sample_rate).write([Message("user", content)])}
        sampling: list[dict[str, Any]] = [{} for _ in range(self._chat.stages)]
        sampling[self._chat.text_stage]["temperature"] = 0.0
        answer = replica.generate({"chat": body}, sampling_params_list=sampling, outputs=("text",))
        async with aclosing(cast("Any", answer)) as outputs:
            return "".join([output.data async for output in outputs if output.type == "text" and output.data])

    async def open(self, config: SessionConfig, replica: ReplicaPort, fence: Fence) -> DuplexStream:
        """Begin a session, which costs the pipeline nothing until it answers."""
        return _ChatStream(self._chat, self._limits, self.input_rate, replica, config)


@dataclass(frozen=True)
class _Limits:
    """Most recordings and images of one request."""

    audio: int
    image: int


def _limits(pipeline: ResolvedPipeline, text_stage: int) -> _Limits:
    given = pipeline.stages[text_stage].engine_args.get("limit_mm_per_prompt") or {}

    def most(kind: str) -> int:
        found = given.get(kind, 1)
        return int(found.get("count", 1) if isinstance(found, Mapping) else found)

    return _Limits(most("audio"), most("image"))


class _ChatStream(DuplexStream):
    def __init__(self, chat: ServedChat, limits: _Limits, input_rate: int, replica: ReplicaPort, config: SessionConfig) -> None:
        self._chat = chat
        self._limits = limits
        self._input_rate = input_rate
        self._replica = replica
        self._config = config

    async def configure(self, config: SessionConfig) -> None:
        self._config = config

    async def close(self) -> None:
        """Hold nothing between answers."""

    async def respond(self, history: Sequence[Message], options: ResponseOptions, fence: Fence) -> AsyncIterator[Output]:
        while True:
            has_said = False
            try:
                async with aclosing(cast("Any", self._answer(history, options, fence))) as outputs:
                    async for output in outputs:
                        has_said = True
                        yield output
                return
            except ContextLengthError:
                shorter = self._shortened(history)
                if has_said or shorter is None:
                    raise
                history = shorter

    def _shortened(self, history: Sequence[Message]) -> Sequence[Message] | None:
        """Return a conversation without its oldest part; None where nothing may be left out."""
        truncation = self._config.truncation
        if truncation == "disabled":
            return None
        ratio = truncation.get("retention_ratio", _KEPT) if isinstance(truncation, Mapping) else _KEPT
        system = [message for message in history if message.role == "system"]
        others = [message for message in history if message.role != "system"]
        kept = others[-min(len(others) - 1, max(1, int(ratio * len(others)))) :] if len(others) > 1 else []
        return [*system, *kept] if kept else None

    async def _answer(self, history: Sequence[Message], options: ResponseOptions, fence: Fence) -> AsyncIterator[Output]:
        aloud = "audio" in options.output_modalities
        voice = resolve_voice(self._chat.traits, options.voice, "voice") if aloud else None
        body: dict[str, Any] = {"messages": _Writer(self._limits, self._input_rate).write(history)}
        if voice is not None:
            body["voice"] = voice
        sampling: list[dict[str, Any]] = [{} for _ in range(self._chat.stages)]
        if options.max_output_tokens is not None:
            sampling[self._chat.text_stage]["max_tokens"] = options.max_output_tokens
        tally = _Tally(self._chat)
        answer = self._replica.generate(
            {"chat": body}, sampling_params_list=sampling, outputs=("text", "audio") if aloud else ("text",)
        )
        async with aclosing(cast("Any", answer)) as outputs:
            async for output in outputs:
                tally.note(output)
                if output.type == "text" and output.data:
                    yield TextOut(output.data, fence)
                elif output.type == "audio" and len(output.data):
                    yield AudioOut(_mono(output.data), output.sample_rate or self._chat.traits.sample_rate, fence)
        yield TurnEnd(fence, "length" if tally.is_cut_off else "stop", tally.usage)


class _Tally:
    """What an answer comes to."""

    def __init__(self, chat: ServedChat) -> None:
        self._chat = chat
        self._samples = 0
        self._counts: Mapping[str, float] = {}
        self.is_cut_off = False

    def note(self, output: OmniOutput) -> None:
        """Count an output."""
        if output.type == "audio":
            self._samples += len(output.data)
        if output.type == "text" and output.stage_finish_reason is not None:
            self._counts = output.stage_metrics
            self.is_cut_off = output.stage_finish_reason == "length"

    @property
    def usage(self) -> dict[str, int]:
        """The numbers under the names of `TurnEnd.usage`; audio tokens are frames."""
        prompt, heard = (int(self._counts.get(name, 0)) for name in ("prompt_tokens", "prompt_audio_tokens"))
        return {
            "input_text_tokens": prompt - heard,
            "input_audio_tokens": heard,
            "output_text_tokens": int(self._counts.get("generated_tokens", 0)),
            "output_audio_tokens": -(-self._samples // self._chat.traits.samples_per_frame),
        }


class _Writer:
    """Write a conversation as OpenAI's chat has it: the last recordings and images as they are, older ones as words."""

    def __init__(self, limits: _Limits, input_rate: int) -> None:
        self._left = {"audio": limits.audio, "image": limits.image}
        self._rate = input_rate

    def write(self, history: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages that have something to say."""
        found = []
        for message in reversed(history):
            parts = [part for content in reversed(message.content) if (part := self._part(content)) is not None]
            if parts:
                texts = all(part["type"] == "text" for part in parts)
                content: Any = "".join(part["text"] for part in reversed(parts)) if texts else parts[::-1]
                found.append({"role": message.role, "content": content})
        return found[::-1]

    def _part(self, content: Content) -> dict[str, Any] | None:
        if content.type in self._left:
            if self._left[content.type] > 0:
                self._left[content.type] -= 1
                return self._file(content)
            return {"type": "text", "text": content.text} if content.text else None
        return {"type": "text", "text": content.text}

    def _file(self, content: Content) -> dict[str, Any]:
        if content.type == "image":
            return {"type": "image_url", "image_url": {"url": content.image_url}}
        assert content.audio is not None, "audio content has audio"
        data = base64.b64encode(_wav(content.audio, self._rate)).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def _wav(pcm: Samples, rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(pcm, -1.0, 1.0) * 32767).round().astype("<i2").tobytes())
    return buffer.getvalue()


def _mono(audio: np.ndarray[Any, Any]) -> Samples:
    return np.ascontiguousarray(audio.mean(axis=1) if audio.shape[1] > 1 else audio[:, 0], np.float32)
