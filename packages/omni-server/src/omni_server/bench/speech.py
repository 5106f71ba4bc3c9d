"""The endpoint /v1/audio/speech: reads streams of bytes, server-sent events and whole files, as PCM or WAV."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np

from omni_server.bench.endpoint import FIRST_BYTE, GAP, TOTAL, BadAnswerError, Digest, Endpoint, Measure
from omni_server.bench.exchange import Exchange
from omni_server.bench.playback import play

Pieces = Sequence[tuple[float, bytes]]

DELIVERIES: dict[str, dict[str, Any]] = {
    "audio": {"response_format": "pcm", "stream_format": "audio"},
    "sse": {"response_format": "pcm", "stream_format": "sse"},
    "whole": {"response_format": "pcm"},
}
"""Request fields of each way that an answer can come in."""

FIRST_PACKET = Measure("first_packet_s", "first packet", decides=True)
FIRST_AUDIBLE = Measure("first_audible_s", "first audible", decides=True)
AUDIO = Measure("audio_s", "audio")
REAL_TIME = Measure("real_time_factor", "real-time factor", unit="x", decides=True)
UNDERRUNS = Measure("underruns", "underruns", unit="")
STALLED = Measure("stalled_s", "stalled")

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_SAMPLE_BYTES = 2
_PCM_TAGS = (1, 0xFFFE)
_UNKNOWN_SIZE = 0xFFFFFFFF


@dataclass(frozen=True)
class Layout:
    """How samples lie in a body."""

    sample_rate: int
    channels: int
    begin: int = 0
    """Byte of the first sample."""
    end: int | None = None
    """Byte after the last sample; None where the body has nothing else."""


@dataclass
class SpeechEndpoint(Endpoint):
    """Ask for speech and measure what is heard.

    Args:
        fields: Request fields beside `input`.
        sample_rate: Hz of PCM answers whose headers do not say it.
        audible_db: Level from which a sample is heard, in dB of full scale.
    """

    fields: Mapping[str, Any]
    sample_rate: int = 24000
    audible_db: float = -40.0

    name = "speech"
    path = "/v1/audio/speech"
    measures = (FIRST_BYTE, FIRST_PACKET, FIRST_AUDIBLE, TOTAL, AUDIO, REAL_TIME, UNDERRUNS, STALLED, GAP)
    produced = AUDIO

    def body(self, prompt: str) -> dict[str, Any]:
        """Return the request for a text."""
        return {"input": prompt, **self.fields}

    def read(self, exchange: Exchange) -> Digest:
        """Return the measures of an answer; of a compressed format, only what does not need its samples."""
        pieces: Pieces = exchange.pieces
        if exchange.headers.get("content-type", "").startswith("text/event-stream"):
            pieces = read_events(pieces)
        if not any(data for _, data in pieces):
            raise BadAnswerError("no audio", "the answer is empty")
        data = b"".join(piece for _, piece in pieces)
        layout = self._layout(exchange, data)
        if layout is None:
            times = [time for time, piece in pieces if piece]
            return Digest(measures={FIRST_PACKET.name: times[0] - exchange.due}, gaps_s=_gaps(times))
        return self._measure(exchange, pieces, data, layout)

    def _layout(self, exchange: Exchange, data: bytes) -> Layout | None:
        form = exchange.job.body.get("response_format")
        if form == "pcm":
            rate = _header(exchange, "x-omni-sample-rate", self.sample_rate)
            return Layout(rate, _header(exchange, "x-omni-channels", 1))
        return read_wav_header(data) if data.startswith(b"RIFF") else None

    def _measure(self, exchange: Exchange, pieces: Pieces, data: bytes, layout: Layout) -> Digest:
        packets = audio_packets(pieces, layout)
        if not packets:
            raise BadAnswerError("no audio", "the answer has no samples")
        rate, due = layout.sample_rate, exchange.due
        frames = sum(count for _, count in packets)
        playback = play([(time, count / rate) for time, count in packets])
        values = {
            FIRST_PACKET.name: packets[0][0] - due,
            AUDIO.name: frames / rate,
            REAL_TIME.name: (exchange.end - due) * rate / frames,
            UNDERRUNS.name: float(playback.underruns),
            STALLED.name: playback.stalled_s,
        }
        end = layout.begin + frames * layout.channels * _SAMPLE_BYTES
        loud = first_loud_frame(data[layout.begin : end], layout.channels, self.audible_db)
        if loud is not None:
            before = np.cumsum([0, *(count for _, count in packets)])
            packet = int(np.searchsorted(before, loud, side="right")) - 1
            heard = playback.starts[packet] + (loud - int(before[packet])) / rate
            values[FIRST_AUDIBLE.name] = heard - due
        return Digest(measures=values, gaps_s=_gaps([time for time, _ in packets]))


def read_events(pieces: Pieces) -> list[tuple[float, bytes]]:
    """Return the audio of server-sent events, each with the time at which its last byte arrived.

    Raises:
        BadAnswerError: An event reports an error or cannot be read, or there is no `speech.audio.done`.
    """
    data = b"".join(piece for _, piece in pieces)
    ends = np.cumsum([len(piece) for _, piece in pieces])
    found: list[tuple[float, bytes]] = []
    begin, done = 0, False
    for match in _EVENT_END.finditer(data):
        event = _event(data[begin : match.start()])
        begin = match.end()
        kind = event.get("type")
        if kind == "speech.audio.delta":
            piece = int(np.searchsorted(ends, begin))
            found.append((pieces[piece][0], _decode(event)))
        elif kind == "speech.audio.error":
            fault = event.get("error")
            raise BadAnswerError("error event", str(fault.get("message") if isinstance(fault, dict) else fault)[:500])
        done = done or kind == "speech.audio.done"
    if not done:
        raise BadAnswerError("cut off", "the events end without speech.audio.done")
    return found


def _event(text: bytes) -> dict[str, Any]:
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith(b"data:")]
    if not lines or lines == [b"[DONE]"]:
        return {}
    try:
        event = json.loads(b"\n".join(lines))
    except ValueError as error:
        raise BadAnswerError("bad event", str(error)[:200]) from error
    if not isinstance(event, dict):
        raise BadAnswerError("bad event", "an event is not a JSON object")
    return event


def _decode(event: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(cast(str, event["audio"]), validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadAnswerError("bad event", f"the audio of a delta cannot be read: {error}") from error


def read_wav_header(data: bytes) -> Layout:
    """Return where the samples of a WAV file are, also of one that is streamed with unknown sizes.

    Raises:
        BadAnswerError: It is damaged, or its samples are not 16-bit PCM.
    """
    rate = channels = 0
    position = 12
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        position += 8
        if name == b"fmt " and position + 16 <= len(data):
            tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data, position)
            if tag not in _PCM_TAGS or bits != 8 * _SAMPLE_BYTES:
                raise BadAnswerError("bad audio", f"WAV with format {tag} and {bits} bits; 16-bit PCM can be measured")
        if name == b"data" and rate and channels:
            return Layout(rate, channels, position, position + size if 0 < size < _UNKNOWN_SIZE else None)
        position += size + size % 2
    raise BadAnswerError("bad audio", "the WAV header has no fmt or no data chunk")


def audio_packets(pieces: Pieces, layout: Layout) -> list[tuple[float, int]]:
    """Return (time, frames) of the pieces that complete at least one frame; a frame is one sample of each channel."""
    packets: list[tuple[float, int]] = []
    received, counted = 0, 0
    for time, data in pieces:
        received += len(data)
        samples_end = received if layout.end is None else min(received, layout.end)
        frames = max(samples_end - layout.begin, 0) // (layout.channels * _SAMPLE_BYTES)
        if frames > counted:
            packets.append((time, frames - counted))
            counted = frames
    return packets


def first_loud_frame(data: bytes, channels: int, audible_db: float) -> int | None:
    """Return the first frame with a sample of at least `audible_db` dB of full scale; None if all is silence.

    Args:
        data: Whole frames of s16le samples.
        channels: Samples of a frame.
        audible_db: Level, 0 is full scale.
    """
    samples = np.frombuffer(data, "<i2").astype(np.int32)
    loud = np.abs(samples) >= 32768 * 10 ** (audible_db / 20)
    first = int(np.argmax(loud)) if len(loud) else 0
    return first // channels if len(loud) and loud[first] else None


def _gaps(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(later - earlier for earlier, later in pairwise(times))


def _header(exchange: Exchange, name: str, default: int) -> int:
    text = exchange.headers.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not int(text):
        raise BadAnswerError("bad audio", f"the header {name} is {text[:40]!r}")
    return int(text)
