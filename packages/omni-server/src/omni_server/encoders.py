"""Turn samples into the bytes of an audio format: whole files, or piece by piece for streams.

The input is float32 in [-1, 1], shape [samples, channels]. Everything is 16-bit: pcm is `s16le` without a header, wav is the
same behind one header, flac, mp3, opus (in Ogg) and aac (ADTS) are written by the FFmpeg libraries inside PyAV.
"""

from __future__ import annotations

import io
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from omni_core.errors import RequestError, ServiceError

Samples = np.ndarray[Any, np.dtype[np.float32]]

UNKNOWN_SIZE = 0xFFFFFFFF
"""What a WAV header says while nobody knows how long the audio will be."""


@dataclass(frozen=True)
class AudioFormat:
    """One value of `response_format`."""

    name: str
    content_type: str
    streams: bool = True
    """Whether the bytes so far can be played before the end is known."""
    container: str = ""
    codec: str = ""
    sample_rates: frozenset[int] = frozenset()
    """Rates in Hz that the codec can carry; empty is any."""


_MPEG_RATES = frozenset({8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000})
_OPUS_RATES = frozenset({8000, 12000, 16000, 24000, 48000})

FORMATS: dict[str, AudioFormat] = {
    item.name: item
    for item in (
        AudioFormat("wav", "audio/wav"),
        AudioFormat("pcm", "audio/pcm"),
        # The header of a flac file holds the number of samples, and common readers fail on one that holds none.
        AudioFormat("flac", "audio/flac", streams=False, container="flac", codec="flac"),
        AudioFormat("mp3", "audio/mpeg", container="mp3", codec="libmp3lame", sample_rates=_MPEG_RATES),
        AudioFormat("opus", "audio/ogg", container="ogg", codec="libopus", sample_rates=_OPUS_RATES),
        AudioFormat("aac", "audio/aac", container="adts", codec="aac", sample_rates=_MPEG_RATES),
    )
}


class AudioEncoder(ABC):
    """Encode one answer. `encode` takes any number of samples at a time; `finish` is called once, last."""

    @abstractmethod
    def encode(self, samples: Samples) -> bytes:
        """Return the bytes that are ready after `samples` [n, channels]; there may be none yet."""

    @abstractmethod
    def finish(self) -> bytes:
        """Return the rest."""


def make_encoder(name: str, sample_rate: int, channels: int, *, streaming: bool) -> AudioEncoder:
    """Return an encoder for the format `name`.

    Args:
        name: A key of FORMATS.
        sample_rate: Hz.
        channels: 1 or 2; wav and pcm take more.
        streaming: Whether the bytes leave as they are made; then headers cannot tell the length.

    Raises:
        RequestError: The format cannot carry such audio, or cannot stream.
    """
    check_format(name, sample_rate, channels, streaming=streaming)
    if name == "pcm":
        return PcmEncoder()
    if name == "wav":
        return WavEncoder(sample_rate, channels, streaming=streaming)
    return CodecEncoder(FORMATS[name], sample_rate, channels, streaming=streaming)


def check_format(name: str, sample_rate: int, channels: int, *, streaming: bool) -> None:
    """Refuse a format that cannot carry audio of `sample_rate` Hz and `channels`, or cannot stream.

    Raises:
        RequestError: It cannot; the hint lists the formats that can.
    """
    wanted = FORMATS[name]
    usable = sorted(item.name for item in FORMATS.values() if _carries(item, sample_rate, channels) and _may(item, streaming))
    if name not in usable:
        reason = "cannot be streamed" if not _may(wanted, streaming) else f"cannot carry {channels} x {sample_rate} Hz"
        raise RequestError(f"{name} {reason}", param="response_format", hint="use one of " + ", ".join(usable))


def to_pcm16(samples: Samples) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return `samples` as 16-bit integers, rounded to the nearest and clipped to [-1, 1].

    Raises:
        ServiceError: A sample is not a number or infinite: the model failed.
    """
    if not np.isfinite(samples).all():
        raise ServiceError("the model made audio with samples that are not finite numbers")
    return np.rint(np.clip(samples, -1.0, 1.0) * np.float32(32767)).astype("<i2")


def wav_header(sample_rate: int, channels: int, data_bytes: int | None) -> bytes:
    """Return the 44 bytes before 16-bit samples; `data_bytes` None says that the length is not known."""
    frame = 2 * channels
    data = UNKNOWN_SIZE if data_bytes is None else data_bytes
    riff = UNKNOWN_SIZE if data_bytes is None else data_bytes + 36
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, sample_rate, sample_rate * frame, frame, 16)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + form + struct.pack("<4sI", b"data", data)


class PcmEncoder(AudioEncoder):
    """Write bare samples."""

    def encode(self, samples: Samples) -> bytes:
        """Return `samples` as s16le, channels interleaved."""
        return to_pcm16(samples).tobytes()

    def finish(self) -> bytes:
        """Return nothing: all is out."""
        return b""


class WavEncoder(AudioEncoder):
    """Write samples behind one header: with exact sizes at the end, or first of all with unknown ones when streaming."""

    def __init__(self, sample_rate: int, channels: int, *, streaming: bool) -> None:
        self._rate = sample_rate
        self._channels = channels
        self._streaming = streaming
        self._started = False
        self._data = bytearray()

    def encode(self, samples: Samples) -> bytes:
        """Return the samples, the first time behind the header; nothing yet for a whole file."""
        data = to_pcm16(samples).tobytes()
        if self._streaming:
            return self._header_once() + data
        self._data += data
        return b""

    def finish(self) -> bytes:
        """Return the whole file, or the header of a stream that had no samples."""
        if self._streaming:
            return self._header_once()
        return wav_header(self._rate, self._channels, len(self._data)) + bytes(self._data)

    def _header_once(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return wav_header(self._rate, self._channels, None)


class CodecEncoder(AudioEncoder):
    """Write a compressed format through PyAV."""

    def __init__(self, form: AudioFormat, sample_rate: int, channels: int, *, streaming: bool) -> None:
        import av  # 0.2 s that most servers do not need

        self._av = av
        self._rate = sample_rate
        self._channels = channels
        self._layout = "mono" if channels == 1 else "stereo"
        self._sink: _Pipe | io.BytesIO = _Pipe() if streaming else io.BytesIO()
        options = {}
        if streaming and form.container == "mp3":
            options["write_xing"] = "0"  # this frame holds the length
        if streaming and form.container == "ogg":
            options["page_duration"] = "100000"  # microseconds; players get nothing before a page is full
        self._container = av.open(self._sink, "w", format=form.container, options=options)
        self._stream = self._container.add_stream(form.codec, rate=sample_rate)
        self._stream.layout = self._layout
        self._position = 0

    def encode(self, samples: Samples) -> bytes:
        """Return what the codec and the container have let go so far; nothing yet for a whole file."""
        if len(samples):
            pcm = np.ascontiguousarray(to_pcm16(samples)).reshape(1, -1)
            frame = self._av.AudioFrame.from_ndarray(pcm, format="s16", layout=self._layout)
            frame.sample_rate = self._rate
            frame.time_base = Fraction(1, self._rate)
            frame.pts = self._position
            self._position += len(samples)
            self._container.mux(self._stream.encode(frame))
        return self._sink.drain() if isinstance(self._sink, _Pipe) else b""

    def finish(self) -> bytes:
        """Return the rest of a stream, or the whole file."""
        if not self._position:
            # These containers need a frame for a readable file: 10 ms of silence stand for no audio.
            self.encode(np.zeros((self._rate // 100, self._channels), np.float32))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.drain() if isinstance(self._sink, _Pipe) else self._sink.getvalue()


class _Pipe:
    """A sink that cannot seek, so that the container never goes back to change what has been sent."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        """Keep `data` until it is drained."""
        self._data += data
        return len(data)

    def drain(self) -> bytes:
        """Return what was written since the last call."""
        data, self._data = bytes(self._data), bytearray()
        return data


def _may(form: AudioFormat, streaming: bool) -> bool:
    return form.streams or not streaming


def _carries(form: AudioFormat, sample_rate: int, channels: int) -> bool:
    if not form.codec:
        return True
    return channels in (1, 2) and (not form.sample_rates or sample_rate in form.sample_rates)
