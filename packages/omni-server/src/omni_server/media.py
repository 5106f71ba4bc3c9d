"""Fetch files and decode reference audio: data URIs, http(s) URLs and local files, as far as the operator permits.

Nothing of a request reaches the network or the disk unless `--allowed-media-domains` or `--allowed-local-media-path` say so,
and a redirect is one more URL to be checked. Whatever goes wrong here is the request's fault: RequestError.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import os
import re
import stat
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import anyio.to_thread
import numpy as np

from omni_core.errors import RequestError
from omni_core.speech import ReferenceAudio, SpeechTraits
from omni_server.context import ServerSettings
from omni_server.reference_cache import ReferenceCache, key_of

MAX_REDIRECTS = 5
MAX_PATH_CHARS = 4096
SAMPLE_RATES = (8_000, 192_000)
"""Lowest and highest rate of a recording in Hz: what telephones and studios make."""
MAX_CHANNELS = 8
_MEDIA_TYPES = {"wavex": "audio/wav", "w64": "audio/wav", "rf64": "audio/wav", "mp3": "audio/mpeg", "mpeg": "audio/mpeg"}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_FORMS = "send a data URI (data:audio/wav;base64,...), or a URL or file that the server allows"


async def load_reference(
    source: str, settings: ServerSettings, traits: SpeechTraits, param: str, cache: ReferenceCache | None = None
) -> ReferenceAudio:
    """Return the audio at `source`, with as many channels as the traits say the model can use, or mono.

    Args:
        source: A data URI, bare base64, an http(s) URL, a file URL or an absolute path.
        settings: What may be fetched, how much, and in what time.
        traits: How long the audio may be, and how many channels the model can use.
        param: The request's field, for errors.
        cache: Clips that were loaded before with the same settings and traits.

    Raises:
        RequestError: It is not permitted, cannot be fetched, is no audio, or is too short or too long.
    """
    key = None
    if cache is not None and cache.is_on:
        key = await anyio.to_thread.run_sync(_locator_key, source, settings, param)
        if key is not None and (known := cache.get(key)) is not None:
            return known
    audio = await _load(source, settings, traits, param)
    if cache is not None and key is not None:
        cache.put(key, audio)
    return audio


async def fetch_within(source: str, settings: ServerSettings, param: str) -> bytes:
    """Return what `fetch_bytes` does, in the time that the settings allow.

    Raises:
        RequestError: It is not permitted, cannot be fetched, or takes longer.
    """
    try:
        async with asyncio.timeout(settings.media_timeout):
            return await fetch_bytes(source, settings, param)
    except TimeoutError as error:
        raise RequestError(f"`{param}` did not arrive within {settings.media_timeout:g} s", param=param) from error


async def read_inline(source: str, settings: ServerSettings, param: str) -> bytes:
    """Return the bytes of base64, bare or in a data URI; never of a path, though base64 may begin like one.

    Raises:
        RequestError: It is something else, or too long.
    """
    read = _read_data_uri if _scheme(source.lstrip()) == "data" else _read_base64
    return await anyio.to_thread.run_sync(read, source.strip(), settings.max_media_bytes, param)


async def _load(source: str, settings: ServerSettings, traits: SpeechTraits, param: str) -> ReferenceAudio:
    data = await fetch_within(source, settings, param)
    return await anyio.to_thread.run_sync(decode_reference, data, traits, param)


def _locator_key(source: str, settings: ServerSettings, param: str) -> bytes | None:
    """Return what a clip is known by in the cache; None for a file that is not there.

    Raises:
        RequestError: It is a local file that may not be read, or a URL of one that cannot be.
    """
    path = _file_url_path(source, param) if _scheme(source) == "file" else source
    if not path.startswith("/") or len(path) > MAX_PATH_CHARS:
        return key_of(source)
    place = _permitted(path, settings, param)
    try:
        found = place.stat()
    except OSError:
        return None
    return key_of(str(place), found.st_mtime_ns, found.st_size)


def _scheme(source: str) -> str:
    return source.partition(":")[0].lower() if _SCHEME.match(source) else ""


async def fetch_bytes(source: str, settings: ServerSettings, param: str) -> bytes:
    """Return the bytes that `source` stands for, at most `settings.max_media_bytes`.

    Raises:
        RequestError: It is not permitted or cannot be fetched.
    """
    scheme = _scheme(source)
    if scheme == "data":
        return await anyio.to_thread.run_sync(_read_data_uri, source, settings.max_media_bytes, param)
    if scheme in ("http", "https"):
        return await _fetch_url(source, settings, param)
    if scheme == "file":
        return await anyio.to_thread.run_sync(_read_file, _file_url_path(source, param), settings, param)
    if scheme:
        raise RequestError(f"`{param}` has the scheme `{scheme[:20]}`, which cannot be fetched", param=param, hint=_FORMS)
    if source.startswith("/") and len(source) <= MAX_PATH_CHARS:
        return await anyio.to_thread.run_sync(_read_file, source, settings, param)
    return await anyio.to_thread.run_sync(_read_base64, source, settings.max_media_bytes, param)


def decode_reference(data: bytes, traits: SpeechTraits, param: str) -> ReferenceAudio:
    """Return the audio in `data` (any format libsndfile reads), its channels averaged unless the model can use them.

    Raises:
        RequestError: It cannot be decoded, has samples that are no numbers, or lasts too short or too long.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = file.samplerate
            _check_form(rate, file.channels, param)
            # A header may lie about the length, so no more is decoded than what shows that it is too long.
            samples = file.read(int((traits.max_reference_s + 1) * rate), dtype="float32", always_2d=True)
            frames = max(len(samples), file.frames if file.frames < 2**40 else 0)
    except (soundfile.SoundFileError, RuntimeError, ValueError, OSError, MemoryError) as error:
        hint = "send wav, flac, ogg, opus or mp3"
        raise RequestError(f"`{param}` is not audio that can be read ({len(data)} bytes)", param=param, hint=hint) from error
    seconds = frames / rate
    if not traits.min_reference_s <= seconds <= traits.max_reference_s:
        allowed = f"it must last {traits.min_reference_s:g} to {traits.max_reference_s:g} s"
        raise RequestError(f"`{param}` lasts {seconds:.2f} s", param=param, hint=allowed)
    if len(samples) < frames:
        raise RequestError(f"`{param}` is cut off: {len(samples)} of {frames} frames can be read", param=param)
    heard = fold_channels(samples, traits)
    if not np.isfinite(heard).all():
        raise RequestError(f"`{param}` has samples that are not finite numbers", param=param)
    return ReferenceAudio(samples=heard, sample_rate=rate)


def sound_type(data: bytes) -> str:
    """Return the media type of audio that `decode_reference` has read, by what is in it and not by what a client says."""
    import soundfile

    name = str(soundfile.info(io.BytesIO(data)).format).lower()
    return _MEDIA_TYPES.get(name, f"audio/{name}")


def fold_channels(samples: np.ndarray[Any, Any], traits: SpeechTraits) -> np.ndarray[Any, Any]:
    """Return samples [n, channels] as the model can use them: with their channels, or averaged to [n]."""
    channels = samples.shape[1]
    if channels == 1 or channels > traits.reference_channels:
        return cast("np.ndarray[Any, Any]", samples.mean(axis=1, dtype=np.float32))
    return samples


def _check_form(rate: int, channels: int, param: str) -> None:
    """Refuse what no recording of a voice is, before a header can ask for gigabytes."""
    low, high = SAMPLE_RATES
    if not low <= rate <= high:
        hint = f"send {low} to {high} Hz"
        raise RequestError(f"`{param}` has a sample rate of {rate} Hz", param=param, hint=hint)
    if channels > MAX_CHANNELS:
        hint = f"send at most {MAX_CHANNELS}"
        raise RequestError(f"`{param}` has {channels} channels", param=param, hint=hint)


def _read_data_uri(source: str, limit: int, param: str) -> bytes:
    head, comma, payload = source.partition(",")
    if not comma:
        raise RequestError(f"`{param}` is a data URI without a comma", param=param, hint="data:audio/wav;base64,AAAA...")
    if head.lower().endswith(";base64"):
        return _read_base64(unquote(payload) if "%" in payload else payload, limit, param)
    data = unquote_to_bytes(payload)
    return _within(data, limit, param)


def _read_base64(text: str, limit: int, param: str) -> bytes:
    """Decode base64 as people send it: wrapped in lines, url-safe, without padding."""
    compact = re.sub(r"\s+", "", text).rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        if len(compact) % 4 == 1:
            raise ValueError("a piece is missing")
        data = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"`{param}` is not valid base64", param=param, hint=_FORMS) from error
    if not data:
        raise RequestError(f"`{param}` is empty", param=param, hint=_FORMS)
    return _within(data, limit, param)


def _within(data: bytes, limit: int, param: str) -> bytes:
    if len(data) > limit:
        raise _too_large(limit, param)
    return data


def _too_large(limit: int, param: str) -> RequestError:
    return RequestError(f"`{param}` has more than {limit} bytes, which is the limit", param=param, hint="send less")


def _file_url_path(source: str, param: str) -> str:
    try:
        parts = urlsplit(source)
    except ValueError as error:  # half a bracket, or a host with characters that look like others
        raise RequestError(f"`{param}` is no file URL", param=param, hint="write file:///path") from error
    if parts.netloc not in ("", "localhost"):
        raise RequestError(f"`{param}` names a file on another host", param=param, hint="write file:///path")
    return unquote(parts.path)


def _permitted(path: str, settings: ServerSettings, param: str) -> Path:
    """Return where a path leads if that is below the allowed folder; links are followed first."""
    if settings.allowed_local_media_path is None:
        hint = "the operator can allow a folder with --allowed-local-media-path"
        raise RequestError(f"`{param}` names a local file, and this server reads none", param=param, hint=hint)
    if "\0" in path or not path.startswith("/"):
        raise RequestError(f"`{param}` must be an absolute path", param=param)
    root = Path(settings.allowed_local_media_path).resolve()
    try:
        place = Path(path).resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise RequestError(f"`{param}` names a path that leads nowhere", param=param) from error
    if not place.is_relative_to(root):
        raise RequestError(f"`{param}` names a file outside the folder that this server may read", param=param)
    return place


def _read_file(path: str, settings: ServerSettings, param: str) -> bytes:
    """Read a regular file below the allowed folder."""
    place = _permitted(path, settings, param)
    try:
        # No link may have appeared since, and opening a pipe must not wait for its writer.
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RequestError(f"`{param}` cannot be read: {error.strerror}", param=param) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RequestError(f"`{param}` is not a regular file", param=param)
    with open(descriptor, "rb") as file:
        return _within(file.read(settings.max_media_bytes + 1), settings.max_media_bytes, param)


async def _fetch_url(source: str, settings: ServerSettings, param: str) -> bytes:
    import httpx  # 0.2 s that most servers do not need

    try:
        url = httpx.URL(source)
        # Bytes are counted as they come, so the answer must not unfold: no compression.
        headers = {"Accept-Encoding": "identity", "User-Agent": "omni-server"}
        async with httpx.AsyncClient(follow_redirects=False, timeout=settings.media_timeout, headers=headers) as client:
            for _ in range(MAX_REDIRECTS + 1):
                _check_host(url, settings, param)
                async with client.stream("GET", url) as response:
                    if response.status_code not in _REDIRECTS:
                        return await _read_response(response, settings.max_media_bytes, param)
                    url = url.join(response.headers.get("location", ""))
    except httpx.TimeoutException as error:
        raise RequestError(f"`{param}` did not arrive within {settings.media_timeout:g} s", param=param) from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise RequestError(f"`{param}` could not be fetched: {type(error).__name__}: {error}", param=param) from error
    raise RequestError(f"`{param}` redirects more than {MAX_REDIRECTS} times", param=param)


def _check_host(url: Any, settings: ServerSettings, param: str) -> None:
    """Refuse hosts that are not listed. `url` is what httpx will connect to, so no second parser can disagree."""
    host = url.host.lower().rstrip(".")
    if url.scheme not in ("http", "https") or not host:
        raise RequestError(f"`{param}` leads to a URL that is not http(s)", param=param)
    if host not in settings.allowed_media_domains:
        allowed = ", ".join(sorted(settings.allowed_media_domains)) or "none"
        hint = f"allowed: {allowed}; the operator can allow hosts with --allowed-media-domains, or send a data URI"
        raise RequestError(
            f"`{param}` leads to the host `{host[:100]}`, which this server may not fetch from", param=param, hint=hint
        )


async def _read_response(response: Any, limit: int, param: str) -> bytes:
    if response.status_code != 200:
        raise RequestError(f"`{param}` could not be fetched: its server answered {response.status_code}", param=param)
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(f"`{param}` could not be fetched: its server answered compressed", param=param)
    data = bytearray()
    async for piece in response.aiter_raw():
        data += piece
        if len(data) > limit:
            raise _too_large(limit, param)
    return bytes(data)
