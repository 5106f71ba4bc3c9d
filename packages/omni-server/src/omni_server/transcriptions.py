"""POST /v1/audio/transcriptions and /v1/audio/translations: what a recording says, written by a model that hears.

The recording becomes a conversation: the sound, and a prompt that asks to write it down. Nothing aligns words with times, so
that formats and options which need times are refused.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, Any, Literal

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Send

from omni_core.chat import CHAT, MEDIA, ServedChat
from omni_core.errors import OmniError, RequestError
from omni_server.chat import require_chat
from omni_server.chat_answer import Dialogue
from omni_server.chat_protocol import ChatRequest
from omni_server.chat_stream import HEADERS
from omni_server.context import ServerContext
from omni_server.errors import CLIENT_CLOSED_REQUEST, error_object, log_service_error
from omni_server.forms import read_form, split_form
from omni_server.protocol import INT64_MAX, validated
from omni_server.status import check_model
from omni_server.streaming import AnswerWriter, ClientGoneError, LiveAnswer, sse, while_connected

FILE = "file"
_PLACE = "messages[0].content[0].input_audio"
_TIMES = "this model tells no times: ask for json, text or verbose_json without timestamp_granularities"


class TranscriptionForm(BaseModel):
    """The form of both endpoints, besides its file."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    language: Annotated[str, Field(min_length=2, max_length=40)] | None = None
    """What is spoken, as a code or a name; a hint for the model."""
    prompt: Annotated[str, Field(max_length=4000)] | None = None
    """Words that may come up, or what was said before."""
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt", "diarized_json"] = "json"
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""
    endpoint = TranscriptionEndpoint(context)
    return [
        Route("/v1/audio/transcriptions", endpoint.transcribe, methods=["POST"]),
        Route("/v1/audio/translations", endpoint.translate, methods=["POST"]),
    ]


class TranscriptionEndpoint:
    """Write down what recordings say."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context

    async def transcribe(self, request: Request) -> Any:
        """Answer with the words of a recording, in its own language."""
        return await self._answer(request, "transcribe")

    async def translate(self, request: Request) -> Any:
        """Answer with the words of a recording, in English."""
        return await self._answer(request, "translate")

    async def _answer(self, request: Request, task: str) -> Any:
        chat = require_chat(self.context)
        if "audio" not in chat.traits.inputs:
            raise RequestError("the served model does not hear", param="model", hint="serve a model that takes audio")
        async with AsyncExitStack() as stack:
            form, data = await self._read(request, stack)
        check_model(self.context, form.model)
        seconds = await anyio.to_thread.run_sync(_duration, data)
        if seconds is None and form.response_format == "verbose_json":
            raise RequestError(
                "the duration of `file` cannot be read", param="response_format", hint="ask for json, or send wav"
            )
        dialogue = self._dialogue(chat, form, data, task)
        if form.stream:
            return LiveAnswer(lambda send: _stream(dialogue, request.scope, send))
        try:
            with _named():
                answer = await while_connected(request.receive, dialogue.whole())
        except ClientGoneError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        text = answer["choices"][0]["message"]["content"]
        return _response(form, task, text, seconds, answer["usage"])

    async def _read(self, request: Request, stack: AsyncExitStack) -> tuple[TranscriptionForm, bytes]:
        fields, file = split_form(await read_form(request, stack), FILE)
        if file is None:
            raise RequestError("`file` is missing", param=FILE, hint="curl -F file=@speech.wav")
        form = _checked(fields)
        data = await file.read(self.context.settings.max_media_bytes + 1)
        limit = self.context.settings.max_media_bytes
        if len(data) > limit:
            raise RequestError(
                f"`file` has more than {limit} bytes, which is the limit", param=FILE, hint="send a shorter clip"
            )
        if not data:
            raise RequestError("`file` is empty", param=FILE, hint="send a recording")
        return form, data

    def _dialogue(self, chat: ServedChat, form: TranscriptionForm, data: bytes, task: str) -> Dialogue:
        traits = chat.traits
        ask = traits.transcription_prompt if task == "transcribe" else traits.translation_prompt
        if form.language:
            ask += f" The language of the audio is {form.language}."
        if form.prompt:
            ask += f" Context: {form.prompt}"
        parts = [{"type": "input_audio", "input_audio": {"url": _PLACE}}, {"type": "text", "text": ask}]
        messages = [{"role": "user", "content": parts}]
        request = ChatRequest(
            messages=messages,
            model=form.model,
            temperature=0.0 if form.temperature is None else form.temperature,
            seed=form.seed,
            max_completion_tokens=form.max_completion_tokens,
        )
        prompt = {CHAT: request.conversation(messages, None), MEDIA: {_PLACE: data}}
        return Dialogue(self.context, chat, request, prompt, False, f"transcr-{uuid.uuid4().hex}")


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Name the form's field where the conversation's place is meant."""
    try:
        yield
    except RequestError as error:
        if error.param != _PLACE:
            raise
        raise RequestError(error.message.replace(_PLACE, FILE), param=FILE, hint=error.hint) from error


def _checked(fields: dict[str, Any]) -> TranscriptionForm:
    for name in fields:
        if name.removesuffix("[]") == "timestamp_granularities":
            raise RequestError("`timestamp_granularities` cannot be had", param="timestamp_granularities", hint=_TIMES)
    form = validated(TranscriptionForm, fields)
    if form.response_format in ("srt", "vtt", "diarized_json"):
        raise RequestError(f"{form.response_format} cannot be made", param="response_format", hint=_TIMES)
    if form.stream and form.response_format != "json":
        raise RequestError(
            f"{form.response_format} cannot be streamed", param="response_format", hint="leave it out, or send json"
        )
    return form


def _duration(data: bytes) -> float | None:
    """Return how long a recording lasts in seconds; None where only the model's own decoder can read it.

    Raises:
        RequestError: It has no samples.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            frames, rate = int(file.frames), int(file.samplerate)
    except (soundfile.SoundFileError, RuntimeError, ValueError, OSError):
        return None
    if not frames:
        raise RequestError("`file` has no samples", param=FILE, hint="send a recording")
    return frames / rate


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens used, as OpenAI's transcriptions have them."""
    details = usage["prompt_tokens_details"]
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
        "input_token_details": {"text_tokens": details["text_tokens"], "audio_tokens": details["audio_tokens"]},
    }


def _response(form: TranscriptionForm, task: str, text: str, seconds: float | None, usage: Mapping[str, Any]) -> Response:
    if form.response_format == "text":
        return PlainTextResponse(text + "\n")
    body: dict[str, Any] = {"text": text, "usage": _usage(usage)}
    if form.response_format == "verbose_json":
        language = "english" if task == "translate" else form.language or "unknown"
        body = {"task": task, "language": language, "duration": seconds, "text": text}
        body["usage"] = {"type": "duration", "seconds": seconds}
    return JSONResponse(body)


async def _stream(dialogue: Dialogue, scope: Any, send: Send) -> None:
    """Send what is written as OpenAI's events."""
    writer = AnswerWriter(send, HEADERS)
    try:
        with _named():
            async with aclosing(dialogue.outputs()) as outputs:
                async for _, output in outputs:
                    if output.data:
                        await writer.write(sse({"type": "transcript.text.delta", "delta": output.data}))
        done = {"type": "transcript.text.done", "text": dialogue.choices[0].text, "usage": _usage(dialogue.usage())}
        await writer.write(sse(done))
    except OmniError as error:
        if not writer.started:
            raise
        log_service_error(scope, error)
        await writer.write(sse({"error": error_object(error)}))
    await writer.end()
