"""Every format is decoded back by somebody else's reader."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
import soundfile

from omni_core.errors import RequestError, ServiceError
from omni_server.encoders import FORMATS, check_format, make_encoder, to_pcm16, wav_header

SECONDS = 1.5
DELIVERIES = [
    pytest.param(name, streaming, id=f"{name}-{'streamed' if streaming else 'whole'}")
    for name, form in sorted(FORMATS.items())
    for streaming in ((False, True) if form.streams else (False,))
]


def tone(rate: int, channels: int) -> np.ndarray:
    times = np.arange(round(SECONDS * rate)) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * (440 + 220 * index) * times) for index in range(channels)], axis=1).astype("f4")


def encode(name: str, samples: np.ndarray, rate: int, *, streaming: bool, piece: int = 1000) -> bytes:
    encoder = make_encoder(name, rate, samples.shape[1], streaming=streaming)
    parts = [encoder.encode(samples[start : start + piece]) for start in range(0, len(samples), piece)]
    return b"".join([*parts, encoder.finish()])


def decode(data: bytes) -> tuple[int, np.ndarray]:
    """Return (rate, samples [n, channels]) as FFmpeg reads them."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp")
        frames = [part for frame in container.decode(stream) for part in resampler.resample(frame)]
        return stream.rate, np.concatenate([frame.to_ndarray() for frame in frames], axis=1).T


def pitch(samples: np.ndarray, rate: int) -> float:
    window = np.hanning(len(samples))
    return float(np.abs(np.fft.rfft(samples * window)).argmax() * rate / len(samples))


@pytest.mark.parametrize(("rate", "channels"), [(24000, 1), (48000, 2), (8000, 1)], ids=["24k-mono", "48k-stereo", "8k-mono"])
@pytest.mark.parametrize(("name", "streaming"), DELIVERIES)
def test_format_keeps_rate_channels_length_and_pitch(name: str, rate: int, channels: int, streaming: bool) -> None:
    samples = tone(rate, channels)

    data = encode(name, samples, rate, streaming=streaming)

    if name == "pcm":  # has no header to read
        assert np.array_equal(np.frombuffer(data, "<i2").reshape(-1, channels), to_pcm16(samples))
        return
    read_rate, read = decode(data)
    assert read_rate == (48000 if name == "opus" else rate)  # opus always decodes at 48 kHz
    assert read.shape[1] == channels
    exact = name in ("wav", "flac", "opus") or (name == "mp3" and not streaming)
    padding = 0 if exact else 4 * 1152 / rate  # seconds that codecs without a length add in whole frames
    assert 0 <= len(read) / read_rate - SECONDS <= padding
    for index in range(channels):
        assert pitch(read[:, index], read_rate) == pytest.approx(440 + 220 * index, abs=3)


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_lossless_formats_give_back_the_exact_samples(name: str) -> None:
    samples = tone(24000, 2)

    read, rate = soundfile.read(io.BytesIO(encode(name, samples, 24000, streaming=False)), dtype="int16")

    assert rate == 24000
    assert np.array_equal(read, to_pcm16(samples))


@pytest.mark.parametrize("name", ["mp3", "opus", "flac"])
def test_libsndfile_reads_whole_files_with_the_right_length(name: str) -> None:
    samples = tone(24000, 1)

    read, rate = soundfile.read(io.BytesIO(encode(name, samples, 24000, streaming=False)))

    assert (len(read), rate) == (len(samples), 24000)


@pytest.mark.parametrize(("name", "streaming"), DELIVERIES)
def test_no_samples_give_a_valid_file(name: str, streaming: bool) -> None:
    data = make_encoder(name, 24000, 1, streaming=streaming).finish()

    if name == "pcm":
        assert data == b""
    elif name == "wav":
        assert data == wav_header(24000, 1, None if streaming else 0)
    else:
        rate, read = decode(data)
        assert len(read) / rate < 0.1
        assert np.abs(read).max() < 1e-3


def test_streamed_wav_has_one_header_with_unknown_sizes() -> None:
    """B21."""
    samples = tone(24000, 1)

    data = encode("wav", samples, 24000, streaming=True)

    assert data.count(b"RIFF") == 1
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    assert data[44:] == to_pcm16(samples).tobytes()


def test_streamed_format_gives_bytes_before_the_end() -> None:
    samples = tone(24000, 1)
    for name in (name for name, form in FORMATS.items() if form.streams):
        assert make_encoder(name, 24000, 1, streaming=True).encode(samples), name


def test_pcm_is_rounded_and_clipped() -> None:
    samples = np.array([[-2.0], [-1.0], [-0.6 / 32767], [0.4 / 32767], [0.6 / 32767], [1.0], [3.0]], np.float32)

    assert to_pcm16(samples).ravel().tolist() == [-32767, -32767, -1, 0, 1, 32767, 32767]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_the_servers_fault(value: float) -> None:
    with pytest.raises(ServiceError, match="finite"):
        to_pcm16(np.array([[value]], np.float32))


@pytest.mark.parametrize(
    ("name", "rate", "channels", "streaming"),
    [("flac", 24000, 1, True), ("opus", 44100, 1, False), ("mp3", 96000, 1, False), ("aac", 24000, 3, False)],
    ids=["flac-stream", "opus-44k1", "mp3-96k", "aac-3-channels"],
)
def test_what_a_format_cannot_carry_is_refused_with_those_that_can(
    name: str, rate: int, channels: int, streaming: bool
) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        check_format(name, rate, channels, streaming=streaming)

    assert caught.value.param == "response_format"
    assert "wav" in caught.value.hint
    assert name not in caught.value.hint
