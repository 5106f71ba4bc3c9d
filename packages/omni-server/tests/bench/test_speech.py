"""What an answer of /v1/audio/speech measures."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_server.bench.endpoint import BadAnswerError, Digest
from omni_server.bench.exchange import Exchange
from omni_server.bench.speech import (
    DELIVERIES,
    Layout,
    SpeechEndpoint,
    audio_packets,
    first_loud_frame,
    read_events,
    read_wav_header,
)
from omni_server.encoders import make_encoder, wav_header

Make = Callable[..., Exchange]
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
RATE = 1000
"""Hz of the answers here, so that a sample is a millisecond."""


def digest(exchange: Exchange, **options: Any) -> Digest:
    return SpeechEndpoint(DELIVERIES["audio"], **{"sample_rate": RATE, **options}).digest(exchange)


def pcm(samples: int, value: int = 10_000) -> bytes:
    return np.full(samples, value, "<i2").tobytes()


def delta(data: bytes) -> bytes:
    return event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


DONE = event({"type": "speech.audio.done"})


def cut(data: bytes, places: list[int]) -> list[tuple[float, bytes]]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    begins = [0, *ends[:-1]]
    return [(float(end), data[begin:end]) for begin, end in zip(begins, ends, strict=True) if end > begin]


class TestMeasures:
    """Of a whole answer."""

    def test_stream_of_pcm(self, make_exchange: Make) -> None:
        pieces = [(10.2, pcm(100, 0)), (10.25, pcm(50, 0) + pcm(50)), (10.6, pcm(100))]

        found = digest(make_exchange(pieces, end=10.7))

        assert found.error is None
        assert dict(found.measures) == pytest.approx(
            {
                "first_byte_s": 0.2,
                "first_packet_s": 0.2,
                "first_audible_s": 0.35,  # the player starts at 0.2 and plays 150 samples of silence
                "total_s": 0.7,
                "audio_s": 0.3,
                "real_time_factor": 0.7 / 0.3,
                "underruns": 1,  # at 0.4 all is played, and the last packet comes at 0.6
                "stalled_s": 0.2,
            }
        )
        assert found.gaps_s == pytest.approx((0.05, 0.35))

    def test_audible_audio_behind_a_stall_is_heard_after_it(self, make_exchange: Make) -> None:
        found = digest(make_exchange([(10.1, pcm(100, 0)), (11.0, pcm(30, 0) + pcm(10))]))

        assert found.measures["first_audible_s"] == pytest.approx(1.03)

    def test_silence_has_no_first_audible_time(self, make_exchange: Make) -> None:
        found = digest(make_exchange([(10.1, pcm(100, 3))]))

        assert found.error is None
        assert "first_audible_s" not in found.measures

    def test_rate_and_channels_are_those_of_the_headers(self, make_exchange: Make) -> None:
        headers = {"x-omni-sample-rate": "500", "x-omni-channels": "2"}

        found = digest(make_exchange([(10.1, pcm(100))], headers=headers))

        assert found.measures["audio_s"] == pytest.approx(100 / 2 / 500)

    def test_streamed_wav_starts_with_its_first_samples(self, make_exchange: Make) -> None:
        pieces = [(10.1, wav_header(RATE, 1, None)), (10.3, pcm(100)), (10.4, pcm(100))]

        found = digest(make_exchange(pieces, form="wav"), sample_rate=7)

        assert found.measures["first_byte_s"] == pytest.approx(0.1)
        assert found.measures["first_packet_s"] == pytest.approx(0.3)
        assert found.measures["audio_s"] == pytest.approx(0.2)

    def test_whole_wav_of_our_own_encoder(self, make_exchange: Make) -> None:
        encoder = make_encoder("wav", 24000, 2, streaming=False)
        data = encoder.encode(np.full((2400, 2), 0.5, np.float32)) + encoder.finish()

        found = digest(make_exchange([(10.1, data)], form="wav"))

        assert found.measures["audio_s"] == pytest.approx(0.1)

    def test_events(self, make_exchange: Make) -> None:
        data = [delta(pcm(100)), delta(pcm(100)), DONE]

        found = digest(make_exchange(list(zip((10.1, 10.2, 10.3), data, strict=True)), headers=EVENTS))

        assert found.measures["audio_s"] == pytest.approx(0.2)
        assert found.gaps_s == pytest.approx((0.1,))

    def test_compressed_audio_has_times_only(self, make_exchange: Make) -> None:
        found = digest(make_exchange([(10.1, b"OggS"), (10.3, b"more")], form="opus"))

        assert dict(found.measures) == pytest.approx({"first_byte_s": 0.1, "first_packet_s": 0.1, "total_s": 0.3})

    @given(st.lists(st.integers(0, 10**6), max_size=20))
    def test_no_sample_is_lost_however_the_bytes_are_cut(self, places: list[int]) -> None:
        packets = audio_packets(cut(pcm(500), places), Layout(RATE, 2))

        assert sum(frames for _, frames in packets) == 250
        assert all(frames > 0 for _, frames in packets)

    @given(st.lists(st.integers(0, 10**6), max_size=20))
    def test_events_are_read_however_the_bytes_are_cut(self, places: list[int]) -> None:
        deltas = [pcm(3, 1), pcm(5, 2), pcm(4, 3)]
        texts = [*map(delta, deltas), b": a comment\r\n\r\n", DONE, b"data: [DONE]\n\n"]
        ends = np.cumsum([len(text) for text in texts])
        pieces = cut(b"".join(texts), places)

        found = read_events(pieces)

        assert [audio for _, audio in found] == deltas
        for (time, _), end in zip(found, ends, strict=False):  # here the time of a piece is the number of its last byte
            assert time == min(piece_end for piece_end, _ in pieces if piece_end >= end)


class TestFailures:
    """Kinds of failure, as they are counted."""

    @pytest.mark.parametrize(
        ("pieces", "changes", "kind"),
        [
            pytest.param([], {"failure": ("timeout", "no end after 1 s")}, "timeout", id="the exchange failed"),
            pytest.param([(10.1, pcm(9))], {"failure": ("cut off", "peer")}, "cut off", id="the exchange failed later"),
            pytest.param([(10.1, b"{}")], {"status": 503}, "status 503", id="status"),
            pytest.param([], {}, "no audio", id="empty"),
            pytest.param([(10.1, b"\0")], {}, "no audio", id="half a sample"),
            pytest.param([(10.1, wav_header(RATE, 1, 0))], {"form": "wav"}, "no audio", id="WAV without samples"),
            pytest.param([(10.1, b"RIFF....WAVEdata")], {"form": "wav"}, "bad audio", id="broken WAV"),
            pytest.param([(10.1, pcm(9))], {"headers": {"x-omni-sample-rate": "-1"}}, "bad audio", id="rate"),
            pytest.param([(10.1, delta(pcm(9)))], {"headers": EVENTS}, "cut off", id="no done"),
            pytest.param([(10.1, DONE)], {"headers": EVENTS}, "no audio", id="no delta"),
            pytest.param([(10.1, b"data: {\n\n")], {"headers": EVENTS}, "bad event", id="no JSON"),
            pytest.param([(10.1, b"data: []\n\n")], {"headers": EVENTS}, "bad event", id="no object"),
            pytest.param(
                [(10.1, event({"type": "speech.audio.delta"}))], {"headers": EVENTS}, "bad event", id="no audio field"
            ),
            pytest.param(
                [(10.1, event({"type": "speech.audio.error", "error": {"message": "m"}}))],
                {"headers": EVENTS},
                "error event",
                id="error event",
            ),
        ],
    )
    def test_kind(self, make_exchange: Make, pieces: Any, changes: dict[str, Any], kind: str) -> None:
        found = digest(make_exchange(pieces, **changes))

        assert found.error == kind
        assert found.detail
        assert not found.measures

    def test_detail_of_a_status_is_the_servers_message(self, make_exchange: Make) -> None:
        body = json.dumps({"error": {"message": "the voice is unknown"}}).encode()

        assert digest(make_exchange([(10.1, body)], status=400)).detail == "the voice is unknown"


class TestWav:
    """Headers."""

    def test_chunks_before_and_after_the_samples_are_no_samples(self) -> None:
        plain = wav_header(RATE, 1, 20)
        data = plain[:36] + b"LIST\x03\0\0\0abc\0" + plain[36:] + pcm(10) + b"LIST\x04\0\0\0abcd"

        layout = read_wav_header(data)

        assert audio_packets([(1.0, data)], layout) == [(1.0, 10)]
        assert data[layout.begin : layout.end] == pcm(10)

    def test_other_samples_than_16_bits_are_refused(self) -> None:
        header = bytearray(wav_header(RATE, 1, 20))
        header[34] = 24

        with pytest.raises(BadAnswerError, match="24 bits"):
            read_wav_header(bytes(header))


@pytest.mark.parametrize(
    ("samples", "channels", "level", "frame"),
    [
        pytest.param([0, 0, 400, 0], 1, -40.0, 2, id="first"),
        pytest.param([0, 0, 0, 400], 2, -40.0, 1, id="second channel"),
        pytest.param([0, -32768], 1, 0.0, 1, id="full scale below zero"),
        pytest.param([0, 300], 1, -40.0, None, id="too quiet"),
        pytest.param([0, 300], 1, -50.0, 1, id="loud enough for a lower level"),
        pytest.param([], 1, -40.0, None, id="nothing"),
    ],
)
def test_first_loud_frame(samples: list[int], channels: int, level: float, frame: int | None) -> None:
    assert first_loud_frame(np.array(samples, "<i2").tobytes(), channels, level) == frame
