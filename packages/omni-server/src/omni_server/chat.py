"""POST /v1/chat/completions: conversations with text, images, audio and video, answered in text and speech.

Also POST /v1/completions, which is refused: the pipelines that are served here take conversations.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from omni_core.chat import CHAT, MEDIA, ServedChat, resolve_voice
from omni_core.errors import RequestError
from omni_server.audio_meter import AudioMeter
from omni_server.chat_answer import Dialogue
from omni_server.chat_parts import read_messages
from omni_server.chat_protocol import ChatRequest, stage_sampling
from omni_server.chat_stream import stream
from omni_server.context import ServerContext
from omni_server.encoders import check_format
from omni_server.errors import CLIENT_CLOSED_REQUEST, request_id
from omni_server.observing import arrival
from omni_server.protocol import parse
from omni_server.speech import LARGE_BODY_BYTES, read_json_body
from omni_server.status import check_model
from omni_server.streaming import AnswerWriter, ClientGoneError, LiveAnswer, while_connected

logger = logging.getLogger(__name__)


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""
    endpoint = ChatEndpoint(context)
    return [
        Route("/v1/chat/completions", endpoint.create, methods=["POST"]),
        Route("/v1/completions", endpoint.refuse_completion, methods=["POST"]),
    ]


def require_chat(context: ServerContext) -> ServedChat:
    """Return what the pipeline answers.

    Raises:
        RequestError: It answers no conversations.
    """
    if context.engine.chat is None:
        raise RequestError("the served model does not answer conversations", param="model", hint="serve a model that chats")
    return context.engine.chat


class ChatEndpoint:
    """Answer conversations."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context

    async def create(self, request: Request) -> Any:
        """Check the request, start it in the engine, and return the whole answer or a stream."""
        body = await read_json_body(request)
        in_thread = len(body) > LARGE_BODY_BYTES
        chat = await anyio.to_thread.run_sync(parse, ChatRequest, body) if in_thread else parse(ChatRequest, body)
        try:
            dialogue = await while_connected(request.receive, self.prepare(chat, arrival(request.scope)))
        except ClientGoneError:
            logger.info("request %s: the client left before it was started", request_id(request.scope))
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        logger.debug("request %s is %s in the engine", request_id(request.scope), dialogue.name)

        async def work(send: Send) -> None:
            with dialogue.meter or contextlib.nullcontext():
                if chat.stream:
                    await stream(dialogue, request.scope, send)
                else:
                    await _send_whole(dialogue, send)

        return LiveAnswer(work)

    async def prepare(self, request: ChatRequest, arrived: float) -> Dialogue:
        """Return the request with everything checked that the server can check, and its files fetched.

        Raises:
            RequestError: A field cannot be used.
        """
        served = require_chat(self.context)
        check_model(self.context, request.model)
        speaks = request.speaks(served)
        voice, meter = None, None
        if speaks:
            traits = served.traits
            voice = resolve_voice(traits, request.audio.voice if request.audio is not None else None)
            try:
                check_format(request.audio_format(), traits.sample_rate, traits.channels, streaming=bool(request.stream))
            except RequestError as error:
                raise RequestError(error.message, param="audio.format", hint=error.hint) from error
            delivery = "sse" if request.stream else "whole"
            meter = AudioMeter(self.context.engine.telemetry.registry, delivery, traits.sample_rate, arrived)
        stage_sampling(request, served)
        found = await read_messages(request.messages, served.traits, self.context.settings)
        prompt = {CHAT: request.conversation(found.messages, voice), MEDIA: found.files}
        return Dialogue(self.context, served, request, prompt, speaks, f"chatcmpl-{uuid.uuid4().hex}", meter)

    async def refuse_completion(self, request: Request) -> Response:
        """Refuse a completion, with the pipeline's own reason where it has one."""
        chat = self.context.engine.chat
        reason = chat.restrictions.get("completions") if chat is not None else None
        if reason is None:
            reason = "this model does not continue texts" + ("; use /v1/chat/completions" if chat is not None else "")
        raise RequestError(reason, param="model", hint="")


async def _send_whole(dialogue: Dialogue, send: Send) -> None:
    answer = await dialogue.whole()
    data = await anyio.to_thread.run_sync(lambda: json.dumps(answer, ensure_ascii=False).encode())
    writer = AnswerWriter(send, {"Content-Type": "application/json", "Content-Length": str(len(data))})
    await writer.write(data)
    if dialogue.meter is not None:
        for piece in dialogue.spoken:
            dialogue.meter.sent(piece)
    await writer.end()
