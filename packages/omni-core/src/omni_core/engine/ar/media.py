"""Files of a conversation: read from what came with the request, checked, and refused with their place. Runs in the stage host.

vLLM's parser of messages asks its media connector for each URL. Ours knows a URL's place and bytes, so that no file is written
into the messages as text, and an error tells which part of which message it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from omni_core.engine.vllm_bridge import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from omni_core.errors import OmniError, RequestError, UnsupportedError

_NAME = "omni"
_SCHEME = "omni-media:"
_RESAMPLERS = {"soxr": "soxr", "scipy": "scipy", "pyav": "av"}
"""vLLM's names of resamplers besides torchaudio, the best first, and their modules."""
PART_KINDS = {"image_url": "an image", "input_audio": "audio", "audio_url": "audio", "video_url": "a video"}
"""Kinds of parts with a file, and what messages call it."""
_ADDRESS = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>|" + _SCHEME)
"""What errors of decoders show of an object that nobody can look at."""
MIN_AUDIO_S = 0.01
"""Shorter audio has no frame that a model could hear."""

_numbers = itertools.count()
_known: dict[str, tuple[str, str, bytes | str]] = {}
"""What the URLs of live requests stand for: place, kind, and bytes or the URL that was sent."""


def install(renderer: Any) -> None:
    """Make vLLM use our connector in this process, and a resampler that is installed.

    Args:
        renderer: vLLM's renderer of the stage's model.
    """
    os.environ["VLLM_MEDIA_CONNECTOR"] = _NAME
    processor = renderer.get_mm_processor() if renderer.mm_processor is not None else None
    if processor is None or importlib.util.find_spec("torchaudio") is not None:
        return
    # torchaudio is vLLM's choice; the versions of it for CPUs do not fit every build of torch.
    method = next((name for name, module in _RESAMPLERS.items() if importlib.util.find_spec(module) is not None), None)
    for parser in (processor.info.data_parser, processor.data_parser) if method is not None else ():
        parser.audio_resampler.method = method


class MediaTable:
    """Give the files of conversations URLs of their own while they are rendered."""

    @contextlib.contextmanager
    def lent(self, messages: Sequence[Any], files: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Yield messages whose files have URLs that only our connector knows.

        Args:
            messages: The messages.
            files: Bytes by place; a part whose place is not there keeps the URL that it names.
        """
        lent: list[str] = []
        try:
            yield [self._message(message, f"messages[{index}]", files, lent) for index, message in enumerate(messages)]
        finally:
            for url in lent:
                _known.pop(url, None)

    def _message(self, message: Any, place: str, files: Mapping[str, Any], lent: list[str]) -> Any:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
            return message
        parts = [self._part(part, f"{place}.content[{index}]", files, lent) for index, part in enumerate(message["content"])]
        return {**message, "content": parts}

    def _part(self, part: Any, place: str, files: Mapping[str, Any], lent: list[str]) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in PART_KINDS:
            return part
        place = f"{place}.{kind}"
        source = files.get(place)
        if source is None:
            source = _named(part.get(kind), kind, place)
        url = f"{_SCHEME}{next(_numbers)}"
        _known[url] = (place, kind, source if isinstance(source, str) else bytes(source))
        lent.append(url)
        kind = "audio_url" if kind == "input_audio" else kind
        return {"type": kind, kind: {"url": url}}


def parts_of(messages: Sequence[Any]) -> Iterator[tuple[Any, str, str]]:
    """Yield the parts with a lent file, with its place and kind."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            value = part.get(part.get("type")) if isinstance(part, Mapping) else None
            url = value.get("url") if isinstance(value, Mapping) else None
            if url in _known:
                yield part, *_known[url][:2]


def _named(value: Any, kind: str, place: str) -> str:
    """Return the URL that a part names itself."""
    if kind == "input_audio" and isinstance(value, Mapping) and isinstance(value.get("data"), str):
        return f"data:audio/{value.get('format', 'wav')};base64,{value['data']}"
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        raise RequestError(f"`{place}` names nothing", param=place, hint="give a URL or a data URI")
    return url


@MEDIA_CONNECTOR_REGISTRY.register(_NAME)  # type: ignore[untyped-decorator]
class OmniMediaConnector(MediaConnector):  # type: ignore[misc]
    """Read the files of conversations, and say which one cannot be read."""

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        """Return the file behind a URL, decoded by vLLM.

        Raises:
            RequestError: It cannot be read; `param` names its place.
            UnsupportedError: What decodes such files is not installed.
        """
        if url not in _known:
            return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)
        place, kind, source = _known[url]
        try:
            if isinstance(source, str):
                return await super().load_from_url_async(source, media_io, fetch_timeout=fetch_timeout)
            return await asyncio.get_running_loop().run_in_executor(None, media_io.load_bytes, source)
        except OmniError:
            raise
        except ImportError as error:
            raise _undecodable(place, kind, str(error)) from error
        except ArithmeticError as error:  # vLLM's choice of frames divides by what a usual video has
            raise unreadable(place, kind, "it has too few frames, or no rate of them") from error
        except Exception as error:  # decoders raise classes of their own, and a file that they refuse is the request's
            raise unreadable(place, kind, str(error)) from error

    async def fetch_audio_async(self, audio_url: str) -> tuple[Any, Any]:
        """Return samples and their rate.

        Raises:
            RequestError: There are none, or they are no numbers; `param` names the place.
        """
        place, kind, _ = _known.get(audio_url, ("messages", "audio_url", ""))
        try:
            samples, rate = await super().fetch_audio_async(audio_url)
        except UnsupportedError:
            raise
        except RequestError as error:
            if kind == "video_url":
                raise _silent(place, error) from error
            raise
        array = np.asarray(samples)
        if array.shape[-1] < MIN_AUDIO_S * rate:
            raise unreadable(place, kind, f"it has {array.shape[-1]} samples at {rate:g} Hz")
        if not np.isfinite(array).all():
            raise unreadable(place, kind, "it has samples that are no finite numbers")
        return samples, rate


def unreadable(place: str, kind: str, reason: str) -> RequestError:
    """Return the error for a file that cannot be used."""
    reason = " ".join(_ADDRESS.sub("", reason).split())[:200]
    return RequestError(
        f"`{place}` is not {PART_KINDS[kind]} that can be read: {reason or 'it cannot be decoded'}",
        param=place,
        hint="send a whole file of a usual format",
    )


def _silent(place: str, error: RequestError) -> RequestError:
    """Return the error for a video whose sound was asked for."""
    reason = error.message.rpartition("read: ")[2]
    hint = "leave out use_audio_in_video, or send videos with sound"
    return RequestError(f"`{place}` has no sound that can be read: {reason}", param=place, hint=hint)


def _undecodable(place: str, kind: str, reason: str) -> UnsupportedError:
    """Return the error for a file whose decoder is not installed."""
    hint = "omni doctor names the missing package to the operator"
    return UnsupportedError(f"`{place}`: this server cannot read {PART_KINDS[kind]}: {reason}", param=place, hint=hint)
