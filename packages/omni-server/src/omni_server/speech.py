"""POST /v1/audio/speech: text to audio, as one file, as bytes while they are made, or as server-sent events."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio.to_thread
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from omni_core.errors import OmniError, RequestError, ServiceError
from omni_core.request import OmniOutput
from omni_core.speech import SpeechPrompt, SpeechTraits
from omni_server.audio_meter import AudioMeter
from omni_server.context import ServerContext
from omni_server.encoders import FORMATS, AudioEncoder, Samples, check_format, make_encoder
from omni_server.errors import CLIENT_CLOSED_REQUEST, ApiError, error_object, log_service_error, request_id, unexpected_message
from omni_server.observing import arrival
from omni_server.protocol import SpeechOptions, SpeechRequest, parse
from omni_server.speech_prompt import make_prompt
from omni_server.status import check_model
from omni_server.streaming import AnswerWriter, ClientGoneError, LiveAnswer, as_base64, sse, while_connected
from omni_server.transforms import Resampler, change_tempo, check_sample_rate

logger = logging.getLogger(__name__)

LARGE_BODY_BYTES = 256 * 1024
"""From here on a body is parsed in a thread, so that other requests' audio does not wait for it."""
BODY_TIMEOUT_S = 60.0
"""Seconds in which a body must have arrived."""


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""
    return [Route("/v1/audio/speech", SpeechEndpoint(context).create, methods=["POST"])]


@dataclass
class Ending:
    """How a request ended, known with its last output."""

    finish_reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def usage(self) -> dict[str, Any]:
        """Return the tokens used, as AP-04 has them. An output token is a frame of audio."""
        text = int(self.metrics.get("prompt_tokens", 0))
        audio = int(self.metrics.get("prompt_audio_tokens", 0))
        made = int(self.metrics.get("frames", 0))
        details = {"text_tokens": text, "audio_tokens": audio}
        total = text + audio
        return {"input_tokens": total, "output_tokens": made, "total_tokens": total + made, "input_token_details": details}

    def headers(self) -> dict[str, str]:
        """Return the tokens used, as the headers of AP-05."""
        usage = self.usage()
        counts = {
            "INPUT": usage["input_tokens"],
            "OUTPUT": usage["output_tokens"],
            "TOTAL": usage["total_tokens"],
            "INPUT-TEXT": usage["input_token_details"]["text_tokens"],
            "INPUT-AUDIO": usage["input_token_details"]["audio_tokens"],
        }
        headers = {f"X-VLLM-OMNI-{name}-TOKENS": str(count) for name, count in counts.items()}
        if self.finish_reason is not None:
            headers["X-Omni-Finish-Reason"] = self.finish_reason
        return headers


@dataclass
class Synthesis:
    """One checked request on its way through the engine: samples come out at the wanted rate."""

    context: ServerContext
    traits: SpeechTraits
    request: SpeechOptions
    prompt: SpeechPrompt
    engine_id: str
    meter: AudioMeter
    ending: Ending = field(default_factory=Ending)

    @property
    def format(self) -> str:
        """The name of the audio format."""
        return self.request.response_format or "wav"

    @property
    def sample_rate(self) -> int:
        """Hz of the answer."""
        return self.request.sample_rate or self.traits.sample_rate

    def encoder(self, *, streaming: bool) -> AudioEncoder:
        """Return an encoder for the answer."""
        return make_encoder(self.format, self.sample_rate, self.traits.channels, streaming=streaming)

    def headers(self, content_type: str) -> dict[str, str]:
        """Return the headers of the answer; the rate and the channels are there for formats that do not carry them."""
        return {
            "Content-Type": content_type,
            "Cache-Control": "no-cache",
            "X-Omni-Sample-Rate": str(self.sample_rate),
            "X-Omni-Channels": str(self.traits.channels),
        }

    async def pieces(self) -> AsyncGenerator[Samples, None]:
        """Yield samples [n, channels] as they are made, then fill in `ending`. Closing it aborts the request."""
        resampler = Resampler(self.traits.sample_rate, self.sample_rate, self.traits.channels)
        finished, made = False, 0
        async with aclosing(self._generate()) as outputs:
            async for output in outputs:
                if output.type == "audio" and output.data is not None:
                    samples = self._as_samples(output)
                    made += len(samples)
                    if len(samples := resampler.push(samples)):
                        yield samples
                if output.finished:
                    finished = True
                    frames = -(-made // self.traits.samples_per_frame)
                    self.ending = Ending(output.finish_reason, {"frames": frames, **output.metrics})
        if not finished:
            raise ServiceError("the engine ended the request without a last output")
        rest = resampler.push(np.zeros((0, self.traits.channels), np.float32), last=True)
        if len(rest):
            yield rest

    def for_text(self, text: str, arrived: float) -> Synthesis:
        """Return the same request with another text, as a request of its own."""
        meter = AudioMeter(self.context.engine.telemetry.registry, self.meter.delivery, self.sample_rate, arrived)
        prompt = replace(self.prompt, text=text)
        return replace(self, prompt=prompt, engine_id=new_engine_id(), meter=meter, ending=Ending())

    async def packets(self) -> AsyncGenerator[tuple[bytes, Samples], None]:
        """Yield the bytes of a streamed answer, each with the samples that it was made of; the last has none."""
        encoder = self.encoder(streaming=True)
        async with aclosing(self.pieces()) as source:
            async for piece in source:
                yield await self._encode(encoder, piece), piece
        rest = await anyio.to_thread.run_sync(encoder.finish)
        yield rest, np.zeros((0, self.traits.channels), np.float32)

    async def whole(self) -> tuple[bytes, list[Samples]]:
        """Return the answer as one file, and the samples that it was made of. No samples give a valid file without any."""
        async with aclosing(self.pieces()) as source:
            pieces = [piece async for piece in source]
        return await anyio.to_thread.run_sync(self._encode_whole, pieces), pieces

    async def _encode(self, encoder: AudioEncoder, piece: Samples) -> bytes:
        if FORMATS[self.format].codec:
            return await anyio.to_thread.run_sync(encoder.encode, piece)
        return encoder.encode(piece)

    def _encode_whole(self, pieces: list[Samples]) -> bytes:
        encoder = self.encoder(streaming=False)
        samples = np.concatenate([np.zeros((0, self.traits.channels), np.float32), *pieces])
        first = encoder.encode(change_tempo(samples, self.sample_rate, self.request.speed or 1.0))
        return first + encoder.finish()

    def _generate(self) -> AsyncGenerator[OmniOutput, None]:
        outputs = self.context.engine.generate(
            self.prompt,
            sampling_params_list=self.request.sampling_params_list,
            request_id=self.engine_id,
            timeout_s=self.context.settings.request_timeout,
            lora_request=self.context.adapter(self.request.model),
        )
        return cast("AsyncGenerator[OmniOutput, None]", outputs)

    def _as_samples(self, output: OmniOutput) -> Samples:
        """Return an output's audio [n, channels]; refuse what would leave with a wrong label."""
        samples = np.asarray(output.data, np.float32)
        samples = samples[:, None] if samples.ndim == 1 else samples
        rate = output.sample_rate or self.traits.sample_rate
        if samples.ndim != 2 or samples.shape[1] != self.traits.channels or rate != self.traits.sample_rate:
            made = f"{'x'.join(map(str, samples.shape))} samples at {rate} Hz"
            raise ServiceError(f"the engine made {made}, not {self.traits.channels} channels at {self.traits.sample_rate} Hz")
        return cast(Samples, samples)


class SpeechEndpoint:
    """Answer speech requests."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context

    async def create(self, request: Request) -> Any:
        """Check the request, start it in the engine, and return the answer that fits `stream_format`."""
        body = await read_json_body(request)
        in_thread = len(body) > LARGE_BODY_BYTES
        speech = await anyio.to_thread.run_sync(parse, SpeechRequest, body) if in_thread else parse(SpeechRequest, body)
        try:
            synthesis = await while_connected(request.receive, self.prepare(speech, arrival(request.scope)))
        except ClientGoneError:
            logger.info("request %s: the client left before it was started", request_id(request.scope))
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        logger.debug("request %s is %s in the engine", request_id(request.scope), synthesis.engine_id)
        deliver = {"whole": self._whole, "audio": self._audio, "sse": self._events}[speech.delivery]

        async def work(send: Send) -> None:
            with synthesis.meter:
                await deliver(synthesis, request.scope, send)

        return LiveAnswer(work)

    async def prepare(self, speech: SpeechRequest, arrived: float) -> Synthesis:
        """Return the request with everything checked that the server can check, and its reference audio fetched.

        Raises:
            RequestError: A field cannot be used.
        """
        return await prepare_speech(self.context, speech, speech.input, speech.delivery, arrived)

    async def _whole(self, synthesis: Synthesis, scope: Any, send: Send) -> None:
        """Send one file."""
        data, pieces = await synthesis.whole()
        headers = synthesis.headers(FORMATS[synthesis.format].content_type) | synthesis.ending.headers()
        writer = AnswerWriter(send, headers | {"Content-Length": str(len(data))})
        await writer.write(data)
        for piece in pieces:
            synthesis.meter.sent(piece)
        await writer.end()

    async def _audio(self, synthesis: Synthesis, scope: Any, send: Send) -> None:
        """Send the bytes of the format as they are made. After an error there is no end: the client sees a broken answer."""
        writer = AnswerWriter(send, synthesis.headers(FORMATS[synthesis.format].content_type))
        try:
            async with aclosing(synthesis.packets()) as packets:
                async for data, samples in packets:
                    await writer.write(data)
                    synthesis.meter.sent(samples)
            await writer.end()
        except OmniError as error:
            if not writer.started:
                raise
            synthesis.meter.failed()
            log_service_error(scope, error)
            logger.warning("request %s: its stream is cut off, since it failed after it had begun", request_id(scope))

    async def _events(self, synthesis: Synthesis, scope: Any, send: Send) -> None:
        """Send events: deltas as audio is made, then `done` with the usage, or `error`."""
        writer = AnswerWriter(send, synthesis.headers("text/event-stream; charset=utf-8") | {"X-Accel-Buffering": "no"})
        try:
            async with aclosing(synthesis.packets()) as packets:
                async for data, samples in packets:
                    if data:
                        event = {"type": "speech.audio.delta", "audio": as_base64(data), "response_format": synthesis.format}
                        await writer.write(sse(event))
                    synthesis.meter.sent(samples)
            ending = synthesis.ending
            done = {"type": "speech.audio.done", "usage": ending.usage(), "finish_reason": ending.finish_reason}
            await writer.write(sse(done))
        except OmniError as error:
            if not writer.started:
                raise
            synthesis.meter.failed()
            log_service_error(scope, error)
            await writer.write(_error_event(error))
        except ClientGoneError:
            raise
        except Exception:  # a bug of ours: uvicorn logs it, and the client must not take what it has for the whole
            if writer.started:
                await writer.write(_error_event(ServiceError(unexpected_message(request_id(scope)))))
            raise
        await writer.end()


async def prepare_speech(
    context: ServerContext, speech: SpeechOptions, text: str, delivery: str, arrived: float, *, streaming: bool | None = None
) -> Synthesis:
    """Return a request with everything checked that the server can check, and its reference audio fetched.

    Args:
        context: The server.
        speech: How to speak.
        text: What to speak.
        delivery: How the answer leaves, for the metrics: `whole`, `audio`, `sse` or `websocket`.
        arrived: When the request came, on the clock of `time.monotonic`.
        streaming: Whether audio leaves as it is made; by default, unless `delivery` is `whole`.

    Raises:
        RequestError: A field cannot be used.
    """
    adapter = context.engine.speech
    check_model(context, speech.model)
    if adapter is None:
        raise RequestError("the served model does not speak a given text", param="model", hint="serve a TTS model")
    traits = adapter.traits
    streaming = delivery != "whole" if streaming is None else streaming
    check_sample_rate(traits.sample_rate, speech.sample_rate)
    rate = speech.sample_rate or traits.sample_rate
    check_format(speech.response_format or "wav", rate, traits.channels, streaming=streaming)
    if streaming and speech.speed not in (None, 1.0):
        hint = "leave speed out, or ask for whole files"
        raise RequestError(f"speed {speech.speed:g} cannot be streamed", param="speed", hint=hint)
    prompt = await make_prompt(context, speech, text, traits)
    meter = AudioMeter(context.engine.telemetry.registry, delivery, rate, arrived)
    return Synthesis(context, traits, speech, prompt, new_engine_id(), meter)


def new_engine_id() -> str:
    """Return an id for a request in the engine."""
    return f"speech-{uuid.uuid4().hex}"


def _error_event(error: OmniError) -> bytes:
    """Return the last event of a stream that failed after it had begun (AP-04)."""
    fault = error_object(error) | {"partial_audio": True, "action": "discard"}
    return sse({"type": "speech.audio.error", "error": fault})


async def read_json_body(request: Request) -> bytes:
    """Return the body of a JSON request.

    Raises:
        ApiError: The body is declared as something else, or does not arrive in time.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(400, f"the body must be application/json, not {media_type[:100] or 'nothing'}")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.body()
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from error
