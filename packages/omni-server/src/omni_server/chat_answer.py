"""One conversation's answers on their way through the engine, and the whole of them as OpenAI's chat completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import anyio.to_thread
import numpy as np

from omni_core.chat import ChatTraits, ServedChat, join_replies
from omni_core.errors import ServiceError
from omni_core.request import OmniOutput
from omni_server.audio_meter import AudioMeter
from omni_server.chat_protocol import ChatRequest, stage_sampling
from omni_server.context import ServerContext
from omni_server.encoders import Samples, make_encoder
from omni_server.streaming import as_base64

AUDIO_TTL_S = 24 * 3600
"""Seconds that `expires_at` promises; nothing is kept here, and clients get the whole audio at once (AP-08)."""


@dataclass
class Choice:
    """One answer as far as it has come."""

    texts: list[str] = field(default_factory=list)
    replies: list[Mapping[str, Any]] = field(default_factory=list)
    samples: int = 0
    """Samples of audio that were made."""
    text_reason: str | None = None
    """Why the writing stage ended."""
    reason: str | None = None
    """Why the answer ended, a limit in any stage included."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The writing stage's numbers."""

    @property
    def text(self) -> str:
        """What was written."""
        return "".join(self.texts)

    @property
    def finish_reason(self) -> str:
        """What clients are told: a limit that cut the audio off counts, except that calls of tools are what matters more."""
        if self.reason == "length" and self.text_reason != "tool_calls":
            return "length"
        return self.text_reason or "stop"

    def note(self, output: OmniOutput) -> None:
        """Take what an output brings."""
        if output.type == "text":
            self.texts.append(output.data)
            if output.reply:
                self.replies.append(output.reply)
            if output.stage_finish_reason is not None:
                self.text_reason, self.metrics = output.stage_finish_reason, output.stage_metrics
        elif output.type == "audio" and output.data is not None:
            self.samples += len(output.data)
        if output.finished:
            self.reason = output.finish_reason


@dataclass
class Dialogue:
    """One checked request: `n` answers to one conversation."""

    context: ServerContext
    chat: ServedChat
    request: ChatRequest
    prompt: Mapping[str, Any]
    speaks: bool
    name: str
    """Id of the answer, `chatcmpl-...`."""
    meter: AudioMeter | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    choices: list[Choice] = field(default_factory=list)
    spoken: list[Samples] = field(default_factory=list)
    """The audio of a whole answer."""

    def __post_init__(self) -> None:
        self.choices = [Choice() for _ in range(self.request.n or 1)]
        self.audio_id = f"audio_{self.name.removeprefix('chatcmpl-')}"
        self.model = self.request.model or self.context.model_names[0]

    @property
    def traits(self) -> ChatTraits:
        """What the model accepts and makes."""
        return self.chat.traits

    @property
    def expires_at(self) -> int:
        """Until when the audio may be referred to, as Unix time."""
        return self.created + AUDIO_TTL_S

    async def outputs(self) -> AsyncGenerator[tuple[int, OmniOutput], None]:
        """Yield every output with the number of its choice, noted already. Closing it aborts all answers.

        Raises:
            OmniError: One of the answers failed; the others are aborted.
        """
        if len(self.choices) == 1:
            async with aclosing(self._one(0)) as outputs:
                async for output in outputs:
                    yield 0, output
            return
        ready: asyncio.Queue[tuple[int, OmniOutput | None]] = asyncio.Queue()
        rooms = [asyncio.Semaphore(1) for _ in self.choices]
        tasks = [asyncio.create_task(self._put(index, ready, room)) for index, room in enumerate(rooms)]
        left = len(tasks)
        try:
            while left:
                index, made = await ready.get()
                if made is None:
                    await tasks[index]
                    left -= 1
                else:
                    yield index, made
                    rooms[index].release()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, index: int, ready: asyncio.Queue[tuple[int, OmniOutput | None]], room: asyncio.Semaphore) -> None:
        """Put an answer's outputs, the next one when the one before was taken, and None at its end."""
        try:
            async with aclosing(self._one(index)) as outputs:
                async for output in outputs:
                    await room.acquire()
                    ready.put_nowait((index, output))
        finally:
            ready.put_nowait((index, None))

    async def _one(self, index: int) -> AsyncGenerator[OmniOutput, None]:
        choice, finished = self.choices[index], False
        generated = self.context.engine.generate(
            self.prompt,
            sampling_params_list=stage_sampling(self.request, self.chat, index),
            request_id=f"{self.name}-{index}",
            timeout_s=self.context.settings.request_timeout,
            lora_request=self.context.adapter(self.request.model),
            outputs=("text", "audio") if self.speaks else ("text",),
        )
        async with aclosing(cast("AsyncGenerator[OmniOutput, None]", generated)) as outputs:
            async for output in outputs:
                choice.note(output)
                finished = finished or output.finished
                yield output
        if not finished:
            raise ServiceError("the engine ended the request without a last output")

    def samples_of(self, output: OmniOutput) -> Samples:
        """Return an output's audio [n, channels]; refuse what would leave with a wrong label."""
        samples = np.asarray(output.data, np.float32)
        samples = samples[:, None] if samples.ndim == 1 else samples
        rate = output.sample_rate or self.traits.sample_rate
        if samples.ndim != 2 or samples.shape[1] != self.traits.channels or rate != self.traits.sample_rate:
            raise ServiceError(
                f"the engine made {samples.shape} samples at {rate} Hz, "
                f"not {self.traits.channels} channels at {self.traits.sample_rate} Hz"
            )
        return cast(Samples, samples)

    def usage(self) -> dict[str, Any]:
        """Return the tokens used. The prompt counts once, whatever `n` is; an audio token is a frame."""
        first = self.choices[0].metrics
        prompt = int(first.get("prompt_tokens", 0))
        kinds = {kind: int(first.get(f"prompt_{kind}_tokens", 0)) for kind in ("audio", "image", "video")}
        text = sum(int(choice.metrics.get("generated_tokens", 0)) for choice in self.choices)
        reasoning = sum(int(choice.metrics.get("reasoning_tokens", 0)) for choice in self.choices)
        audio = sum(-(-choice.samples // self.traits.samples_per_frame) for choice in self.choices)
        cached = int(first.get("cached_tokens", 0))
        prompt_details = {f"{kind}_tokens": count for kind, count in kinds.items()}
        prompt_details |= {"text_tokens": prompt - sum(kinds.values()), "cached_tokens": cached}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": text + audio,
            "total_tokens": prompt + text + audio,
            "prompt_tokens_details": prompt_details,
            "completion_tokens_details": {"text_tokens": text, "audio_tokens": audio, "reasoning_tokens": reasoning},
        }

    async def whole(self) -> dict[str, Any]:
        """Return all answers as one chat completion."""
        async with aclosing(self.outputs()) as outputs:
            async for _, output in outputs:
                if output.type == "audio" and output.data is not None:
                    self.spoken.append(self.samples_of(output))
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self.choices)]
        if self.speaks:
            choices = self._with_audio(choices, await anyio.to_thread.run_sync(self._encode, self.spoken))
        return {
            "id": self.name,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.usage(),
        }

    def _encode(self, pieces: list[Samples]) -> str:
        """Return the spoken answer as one file in base64."""
        traits = self.traits
        encoder = make_encoder(self.request.audio_format(), traits.sample_rate, traits.channels, streaming=False)
        samples = np.concatenate([np.zeros((0, traits.channels), np.float32), *pieces])
        return as_base64(encoder.encode(samples) + encoder.finish())

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        reply = join_replies(choice.replies)
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if calls := reply.get("tool_calls"):
            message |= {"tool_calls": calls, "content": choice.text or None}
        if "reasoning" in reply:
            message["reasoning"] = reply["reasoning"]
        logprobs = {"content": reply["logprobs"], "refusal": None} if "logprobs" in reply else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _with_audio(self, choices: list[dict[str, Any]], data: str) -> list[dict[str, Any]]:
        """Return the one choice with its audio; the transcript takes the place of the content, as OpenAI has it."""
        (choice,) = choices
        text = self.choices[0].text
        audio = {"id": self.audio_id, "data": data, "expires_at": self.expires_at, "transcript": text}
        if self.request.delta_style == "modality":
            spoken = {"role": "assistant", "content": None, "refusal": None, "audio": {**audio, "transcript": ""}}
            return [choice, {**choice, "index": 1, "message": spoken, "logprobs": None}]
        return [{**choice, "message": {**choice["message"], "content": None, "audio": audio}}]
