"""A conversation's answer as chunks: in OpenAI's shape, or with text and audio as choices of their own (vLLM-Omni 0.30)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from starlette.types import Send

from omni_core.errors import OmniError, ServiceError
from omni_core.request import OmniOutput
from omni_server.chat_answer import Dialogue
from omni_server.encoders import PcmEncoder
from omni_server.errors import error_object, log_service_error, request_id, unexpected_message
from omni_server.streaming import AnswerWriter, ClientGoneError, as_base64, sse

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"

Chunk = dict[str, Any]


class OpenAIChunks:
    """Chunks in OpenAI's shape: text in `delta.content`, or, where the answer is spoken, all of it in `delta.audio`."""

    def __init__(self, dialogue: Dialogue) -> None:
        self.dialogue = dialogue
        self._pcm = PcmEncoder()

    def first(self) -> Iterator[Chunk]:
        """Yield what is sent before anything is made."""
        for index in range(len(self.dialogue.choices)):
            yield self.chunk(index, {"role": "assistant", **({} if self.dialogue.speaks else {"content": ""})})
        if self.dialogue.speaks:
            yield self.chunk(0, {"audio": {"id": self.dialogue.audio_id}})

    def of(self, index: int, output: OmniOutput) -> Iterator[Chunk]:
        """Yield what an output brings."""
        if output.type == "text":
            if delta := self._text_delta(output):
                yield self.chunk(index, delta, logprobs=output.reply.get("logprobs"))
            elif output.reply.get("logprobs"):
                yield self.chunk(index, {"content": ""}, logprobs=output.reply["logprobs"])
        elif output.type == "audio" and output.data is not None:
            samples = self.dialogue.samples_of(output)
            if len(samples):
                yield self.sound(as_base64(self._pcm.encode(samples)))
                if self.dialogue.meter is not None:
                    self.dialogue.meter.sent(samples)
        yield from self.ends(index, output)

    def _text_delta(self, output: OmniOutput) -> Chunk:
        delta: Chunk = {}
        if output.data:
            delta |= self.text(output.data)
        if output.reply.get("reasoning"):
            delta["reasoning"] = output.reply["reasoning"]
        if output.reply.get("tool_calls"):
            delta["tool_calls"] = output.reply["tool_calls"]
        return delta

    def text(self, text: str) -> Chunk:
        """Return a delta with a piece of text."""
        return {"audio": {"transcript": text}} if self.dialogue.speaks else {"content": text}

    def sound(self, data: str) -> Chunk:
        """Return a chunk with base64 of s16le samples."""
        return self.chunk(0, {"audio": {"data": data}})

    def ends(self, index: int, output: OmniOutput) -> Iterator[Chunk]:
        """Yield the last chunks of a choice, when its last output came."""
        if output.finished:
            if self.dialogue.speaks:
                yield self.chunk(0, {"audio": {"expires_at": self.dialogue.expires_at}})
            yield self.chunk(index, {}, self.dialogue.choices[index].finish_reason)

    def usage(self) -> Chunk:
        """Return the chunk with the tokens used."""
        return {**self._frame([]), "usage": self.dialogue.usage()}

    def chunk(self, index: int, delta: Chunk, reason: str | None = None, logprobs: list[Any] | None = None) -> Chunk:
        """Return a chunk of one choice."""
        content = None if logprobs is None else {"content": logprobs, "refusal": None}
        return self._frame([{"index": index, "delta": delta, "logprobs": content, "finish_reason": reason}])

    def _frame(self, choices: list[Chunk]) -> Chunk:
        answer = self.dialogue
        frame: Chunk = {"id": answer.name, "object": "chat.completion.chunk", "created": answer.created, "model": answer.model}
        options = answer.request.stream_options
        return {**frame, "choices": choices, **({"usage": None} if options is not None and options.include_usage else {})}


class ModalityChunks(OpenAIChunks):
    """Chunks that name their `modality`: text is choice 0 and audio choice 1, both in `delta.content`."""

    def first(self) -> Iterator[Chunk]:
        """Yield what is sent before anything is made."""
        yield self.chunk(0, {"role": "assistant", "content": ""})
        if self.dialogue.speaks:
            yield self.chunk(1, {"role": "assistant", "content": ""})

    def text(self, text: str) -> Chunk:
        """Return a delta with a piece of text."""
        return {"content": text}

    def sound(self, data: str) -> Chunk:
        """Return a chunk with base64 of s16le samples."""
        return self.chunk(1, {"content": data})

    def ends(self, index: int, output: OmniOutput) -> Iterator[Chunk]:
        """Yield the last chunk of text when it is written, and that of audio with the last output."""
        choice = self.dialogue.choices[index]
        if output.type == "text" and output.stage_finish_reason is not None:
            yield self.chunk(0, {}, output.stage_finish_reason)
        if output.finished and self.dialogue.speaks:
            yield self.chunk(1, {}, "length" if choice.reason == "length" else "stop")

    def chunk(self, index: int, delta: Chunk, reason: str | None = None, logprobs: list[Any] | None = None) -> Chunk:
        """Return a chunk of one modality."""
        return {**super().chunk(index, delta, reason, logprobs), "modality": "audio" if index else "text"}


async def stream(dialogue: Dialogue, scope: Any, send: Send) -> None:
    """Send an answer as chunks, the usage if it is asked for, and `[DONE]`. A failure after the first chunk is an event."""
    style = ModalityChunks if dialogue.request.delta_style == "modality" and dialogue.speaks else OpenAIChunks
    chunks = style(dialogue)
    writer = AnswerWriter(send, HEADERS)
    options = dialogue.request.stream_options
    try:
        async with aclosing(dialogue.outputs()) as outputs:
            async for index, output in outputs:
                if not writer.started:
                    for chunk in chunks.first():
                        await writer.write(sse(chunk))
                for chunk in chunks.of(index, output):
                    await writer.write(sse(chunk))
        if options is not None and options.include_usage:
            await writer.write(sse(chunks.usage()))
        await writer.write(DONE)
    except OmniError as error:
        if not writer.started:
            raise
        if dialogue.meter is not None:
            dialogue.meter.failed()
        log_service_error(scope, error)
        await writer.write(sse({"error": error_object(error)}))
    except ClientGoneError:
        raise
    except Exception:  # a bug of ours: uvicorn logs it, and the client must not take what it has for the whole
        if writer.started:
            await writer.write(sse({"error": error_object(ServiceError(unexpected_message(request_id(scope))))}))
        raise
    await writer.end()
