"""GET, POST and DELETE /v1/audio/voices: the voices that there are, a new one with its owner's consent, and its end.

An upload is decoded and kept as samples. Nothing else of the file reaches the disk, so it cannot be anything but sound.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio.to_thread
import numpy as np
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from omni_core.errors import RequestError, UnsupportedError
from omni_core.speech import ReferenceAudio, SpeechTraits
from omni_server.context import ServerContext
from omni_server.errors import request_id
from omni_server.forms import read_form, split_form
from omni_server.media import decode_reference, sound_type
from omni_server.protocol import VoiceUpload, validated
from omni_server.voice_file import VoiceFacts
from omni_server.voice_names import checked_name
from omni_server.voice_store import VoiceNotFoundError, VoiceStore

logger = logging.getLogger(__name__)

MAX_SAMPLE_BYTES = 10 * 1024 * 1024
"""Bytes of an uploaded recording."""
SILENCE = 0.001
"""A recording whose loudest sample is below this, 60 dB below full scale, is silent."""
_SAMPLE = "audio_sample"


def routes(context: ServerContext) -> list[Route]:
    """Return the routes of this module."""
    endpoint = VoicesEndpoint(context)
    return [
        Route("/v1/audio/voices", endpoint.list, methods=["GET"]),
        Route("/v1/audio/voices", endpoint.create, methods=["POST"]),
        Route("/v1/audio/voices/{name:path}", endpoint.delete, methods=["DELETE"]),
    ]


class VoicesEndpoint:
    """Answer what is asked of voices."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.library = context.voices  # reads the operator's voices now, so that the start's log tells of them

    async def list(self, request: Request) -> Response:
        """Return the names that requests may use, and what is known of the uploaded ones."""
        uploaded = [facts.listed() for facts in await self.library.uploaded()]
        return JSONResponse({"voices": await self.library.names(), "uploaded_voices": uploaded})

    async def create(self, request: Request) -> Response:
        """Check an upload and keep it."""
        traits, store = self._ready()
        async with AsyncExitStack() as stack:
            fields, sample = split_form(await read_form(request, stack), _SAMPLE)
            if "speaker_embedding" in fields:
                fields["speaker_embedding"] = _numbers(fields["speaker_embedding"])
            upload = validated(VoiceUpload, fields)
            name = checked_name(upload.name)
            self.library.check_free(name)
            audio, embedding = None, upload.speaker_embedding
            size, mime_type = len(upload.speaker_embedding or ()) * 4, "application/json"
            if (sample is None) == (embedding is None):
                hint = "send one of them"
                raise RequestError("a voice is either `audio_sample` or `speaker_embedding`", param=_SAMPLE, hint=hint)
            if sample is not None:
                data = await _read_sample(sample)
                audio = await anyio.to_thread.run_sync(decode_sample, data, traits)
                size, mime_type = len(data), await anyio.to_thread.run_sync(sound_type, data)
        if embedding is not None and "speaker_embedding" not in traits.accepts:
            raise RequestError("the served model takes no embedding", param="speaker_embedding", hint="send `audio_sample`")
        facts = VoiceFacts(
            name=name,
            consent=upload.consent,
            created_at=int(time.time()),
            file_size=size,
            mime_type=mime_type,
            sample_rate=0 if audio is None else audio.sample_rate,
            embedding_dim=None if embedding is None else len(embedding),
            ref_text=upload.ref_text,
            speaker_description=upload.speaker_description,
        )
        await anyio.to_thread.run_sync(store.add, facts, audio, None if embedding is None else tuple(embedding))
        logger.info("request %s: the voice %r was uploaded", request_id(request.scope), name)
        answer = {"id": name, "object": "audio.voice", "type": _SAMPLE, "name": name, "created_at": facts.created_at}
        return JSONResponse(answer | {"success": True, "voice": facts.listed()})

    async def delete(self, request: Request) -> Response:
        """Delete an uploaded voice."""
        name = request.path_params["name"]
        store = self.library.store
        if store is None:
            raise VoiceNotFoundError("this server keeps no uploaded voices", param="name")
        await anyio.to_thread.run_sync(store.remove, name)
        logger.info("request %s: the voice %r was deleted", request_id(request.scope), name[:100])
        return JSONResponse({"id": name, "object": "audio.voice.deleted", "deleted": True, "success": True})

    def _ready(self) -> tuple[SpeechTraits, VoiceStore]:
        speech, store = self.context.engine.speech, self.library.store
        if speech is None or not speech.traits.clones:
            raise RequestError("the served model does not imitate a voice", param=_SAMPLE, hint="serve a model that clones")
        if store is None:
            raise UnsupportedError("this server keeps no voices", hint="the operator can name a folder with --voices-dir")
        return speech.traits, store


def decode_sample(data: bytes, traits: SpeechTraits) -> ReferenceAudio:
    """Return an uploaded recording as the model can use it.

    Raises:
        RequestError: It is no recording of a voice; `param` is `audio_sample`.
    """
    audio = decode_reference(data, traits, _SAMPLE)
    if np.abs(audio.samples).max(initial=0.0) < SILENCE:
        raise RequestError("`audio_sample` is silent", param=_SAMPLE, hint="send a recording of the voice")
    return audio


def _numbers(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "send a list of numbers"
        raise RequestError("`speaker_embedding` is not JSON", param="speaker_embedding", hint=hint) from error
    if not isinstance(found, list):
        raise RequestError("`speaker_embedding` is not a list", param="speaker_embedding", hint="send a list of numbers")
    return found


async def _read_sample(sample: UploadFile) -> bytes:
    data = await sample.read(MAX_SAMPLE_BYTES + 1)
    if len(data) > MAX_SAMPLE_BYTES:
        hint = "send a shorter clip, or flac"
        raise RequestError(f"`audio_sample` has more than {MAX_SAMPLE_BYTES} bytes", param=_SAMPLE, hint=hint)
    if not data:
        raise RequestError("`audio_sample` is empty", param=_SAMPLE, hint="send a recording of 1 to 30 s")
    return data
