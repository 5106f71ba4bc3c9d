"""Formats of audio: exact tables, and streams that do not care how they are cut."""

from __future__ import annotations

import base64
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_duplex.audio import g711
from omni_duplex.audio.formats import AudioFormat, Decoder, Encoder, parse_format, to_bytes
from omni_duplex.audio.framer import Framer
from omni_duplex.errors import DuplexError

FORMS = [AudioFormat("audio/pcm", rate) for rate in (8_000, 16_000, 24_000, 48_000)]
FORMS += [AudioFormat("audio/pcmu", 8_000), AudioFormat("audio/pcma", 8_000)]


@pytest.mark.parametrize(
    ("law", "code", "value"),
    [
        ("ulaw", 0xFF, 0),
        ("ulaw", 0x7F, 0),
        ("ulaw", 0x00, -32124),
        ("ulaw", 0x80, 32124),
        ("ulaw", 0xF0, 120),
        ("alaw", 0xD5, 8),
        ("alaw", 0x55, -8),
        ("alaw", 0xAA, 32256),
        ("alaw", 0x2A, -32256),
        ("alaw", 0xC5, 264),
    ],
)
def test_codes_have_the_values_of_the_standard(law: g711.Law, code: int, value: int) -> None:
    assert g711.decode(bytes([code]), law)[0] == value


@pytest.mark.parametrize("law", ["ulaw", "alaw"])
def test_every_value_is_coded_as_the_nearest_there_is(law: g711.Law) -> None:
    values = np.arange(-32768, 32768).astype(np.int16)
    table = g711.decode_table(law).astype(np.int64)

    back = g711.decode(g711.encode(values, law), law).astype(np.int64)

    nearest = np.abs(values.astype(np.int64)[:, None] - np.unique(table)[None, :]).min(axis=1)
    np.testing.assert_array_equal(np.abs(back - values), nearest)


@given(data=st.binary(min_size=1, max_size=4000), cuts=st.lists(st.integers(0, 4000), max_size=8), form=st.sampled_from(FORMS))
def test_a_stream_may_be_cut_anywhere(data: bytes, cuts: list[int], form: AudioFormat) -> None:
    if form.law is None:
        data = data[: len(data) // 2 * 2]
    whole = Decoder(form, 24_000).push_bytes(data)
    decoder = Decoder(form, 24_000)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]

    pieces = [decoder.push_bytes(data[a:b]) for a, b in itertools.pairwise(edges)]

    joined = np.concatenate(pieces)
    if form.rate == 24_000:
        np.testing.assert_array_equal(joined, whole)
    size = min(len(joined), len(whole))  # a resampler may hold another amount back at the end
    np.testing.assert_allclose(joined[:size], whole[:size], atol=1e-6)


@given(st.lists(st.integers(0, 300), max_size=20), st.integers(1, 80))
def test_units_do_not_depend_on_how_the_audio_came(sizes: list[int], unit: int) -> None:
    audio = np.arange(sum(sizes), dtype=np.float32)
    framer, units = Framer(unit), []
    at = 0

    for size in sizes:
        units += framer.push(audio[at : at + size])
        at += size

    whole = len(audio) // unit
    np.testing.assert_array_equal(np.concatenate([*units, np.zeros(0)]), audio[: whole * unit])
    assert framer.pending == len(audio) - whole * unit


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.type} {form.rate}")
def test_what_is_encoded_in_pieces_is_what_is_encoded_at_once(form: AudioFormat) -> None:
    tone = (0.5 * np.sin(np.arange(24_000) * 0.05)).astype(np.float32)
    once, pieces = Encoder(form, 24_000), Encoder(form, 24_000)

    whole = once.push(tone, last=True)
    parts = [pieces.push(piece) for piece in np.split(tone, range(1920, 24_000, 1920))]
    parts.append(pieces.push(np.zeros(0, np.float32), last=True))

    assert b"".join(parts) == whole
    assert len(whole) == form.rate * (1 if form.law else 2)


def test_loud_samples_are_clipped_and_not_wrapped() -> None:
    data = to_bytes(np.array([2.0, -2.0, np.nan], np.float32), AudioFormat())

    assert np.frombuffer(data, "<i2").tolist() == [32767, -32767, 0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("@@@@", "bad_audio"),
        ("AAA", "bad_audio"),
        (7, "invalid_value"),
        ("A" * (15 * 1024**2 + 4), "event_too_large"),
    ],
    ids=["no base64", "cut base64", "no text", "too long"],
)
def test_audio_that_is_none_is_refused(text: object, code: str) -> None:
    with pytest.raises(DuplexError) as caught:
        Decoder(AudioFormat(), 24_000).push(text)

    assert caught.value.code == code


def test_an_odd_byte_waits_for_its_other_half() -> None:
    decoder = Decoder(AudioFormat(), 24_000)
    data = np.array([100, -100], "<i2").tobytes()

    first, second = (decoder.push(base64.b64encode(part).decode()) for part in (data[:1], data[1:]))

    assert (len(first), len(second)) == (0, 2)


@pytest.mark.parametrize(
    "value",
    [
        "pcm16",
        {"type": "audio/ogg"},
        {"type": "audio/pcm", "rate": float("nan")},
        {"type": "audio/pcm", "rate": True},
        {"type": "audio/pcmu", "rate": 16_000},
        {"type": "audio/pcm", "bits": 8},
    ],
)
def test_formats_that_do_not_exist_are_refused(value: object) -> None:
    with pytest.raises(DuplexError) as caught:
        parse_format(value, "session.audio.input.format")

    assert caught.value.code == "unsupported_audio_format"
