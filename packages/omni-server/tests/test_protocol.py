"""The body of a speech request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_core.errors import RequestError
from omni_server.protocol import SpeechRequest, parse


def read(**fields: Any) -> SpeechRequest:
    return parse(SpeechRequest, json.dumps({"input": "hi", **fields}).encode())


def refused(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(SpeechRequest, body)
    return caught.value


WRONG: list[tuple[str, Any]] = [
    ("input", 5),
    ("input", None),
    ("voice", 5),
    ("voice", ""),
    ("voice", {"name": "x"}),
    ("voice", ["Vivian"]),
    ("voice", "a" * 1001),
    ("speaker", "\ufdfa" * 1001),
    ("instructions", 123),
    ("response_format", "mpeg"),
    ("response_format", "WAV"),
    ("sample_rate", 0),
    ("sample_rate", -1),
    ("sample_rate", "8000"),
    ("sample_rate", 8000.0),
    ("sample_rate", True),
    ("speed", 0.1),
    ("speed", 5),
    ("speed", "1"),
    ("stream", "yes"),
    ("stream", 1),
    ("stream_format", "chunked"),
    ("task_type", 1),
    ("language", 1),
    ("ref_audio", 1),
    ("ref_text", 1),
    ("x_vector_only_mode", "true"),
    ("speaker_embedding", []),
    ("speaker_embedding", ["a"]),
    ("speaker_embedding", [0.0] * 8193),
    ("max_new_tokens", 0),
    ("max_new_tokens", 1.5),
    ("max_new_tokens", "5"),
    ("seed", 2**63),
    ("seed", "1"),
    ("initial_codec_chunk_frames", -1),
    ("non_streaming_mode", "no"),
    ("sampling_params_list", {}),
    ("sampling_params_list", [1]),
    ("extra_params", []),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}-{str(value)[:20]}" for field, value in WRONG])
def test_wrong_value_is_refused_and_the_field_named(field: str, value: Any) -> None:
    """AP-01, B22, B23."""
    error = refused(json.dumps({"input": "hi", field: value}).encode())

    assert error.http_status == 400
    assert error.param == field
    assert f"`{field}`" in error.message


@pytest.mark.parametrize("field", sorted(set(SpeechRequest.model_fields) - {"input"}))
def test_null_means_not_given(field: str) -> None:
    assert read(**{field: None}) == read()


def test_all_wrong_fields_are_named_at_once() -> None:
    error = refused(b'{"input": 1, "stream": "yes", "speed": 9}')

    assert all(f"`{name}`" in error.message for name in ("input", "stream", "speed"))


def test_unknown_field_is_refused_with_the_nearest_name() -> None:
    error = refused(b'{"input": "hi", "respose_format": "wav", "zzzz": 1}')

    assert error.param == "respose_format"
    assert "`respose_format`, `zzzz`" in error.message
    assert "`response_format`" in error.hint


BROKEN = {
    "no-json": b"input=hi",
    "empty": b"",
    "list": b"[]",
    "string": b'"hi"',
    "cut-off": b'{"input": "hi"',
    "nan": b'{"input": "hi", "speaker_embedding": [NaN]}',
    "infinity": b'{"input": "hi", "speed": Infinity}',
    "huge-number": b'{"input": "hi", "seed": ' + b"9" * 5000 + b"}",
    "deep": b'{"extra_params": ' + b"[" * 100_000,
    "not-utf8": b'{"input": "\xff\xfe"}',
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_broken_body_is_a_request_error(body: bytes) -> None:
    error = refused(body)

    assert error.http_status == 400
    assert len(error.message) < 400


def test_embedding_that_overflows_is_refused() -> None:
    error = refused(b'{"input": "hi", "speaker_embedding": [1e999]}')

    assert error.param == "speaker_embedding"


@pytest.mark.parametrize("text", [r"a\ud800b", r"\udc00", r"a\u0000"], ids=["high", "low", "nul"])
@pytest.mark.parametrize("field", ["input", "instructions", "ref_text", "voice", "language"])
def test_text_that_is_no_text_is_refused(field: str, text: str) -> None:
    """B24."""
    error = refused(f'{{"input": "hi", "{field}": "{text}"}}'.encode())

    assert error.param == field


def test_odd_text_is_found_deep_inside_and_in_keys() -> None:
    assert refused(b'{"input": "hi", "extra_params": {"a": ["x", "\\ud800"]}}').param == "extra_params.a.1"
    assert refused(b'{"input": "hi", "extra_params": {"\\ud800": 1}}').param == "extra_params"


@pytest.mark.parametrize("text", ["🎉", "مرحبا\u200f", "...", "A" * 100_000], ids=["emoji", "rtl", "points", "long"])
def test_odd_but_valid_text_is_left_to_the_model(text: str) -> None:
    assert read(input=text).input == text


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, None),
        ({"voice": "Vivian"}, "Vivian"),
        ({"voice": {"id": "Vivian"}}, "Vivian"),
        ({"speaker": "Vivian"}, "Vivian"),
        ({"speaker": "Vivian", "voice": "Vivian"}, "Vivian"),
        ({"voice": "default"}, None),
        ({"voice": "Default"}, None),
    ],
)
def test_voice_can_be_written_in_several_ways(fields: dict[str, Any], name: str | None) -> None:
    assert read(**fields).voice_name == name


def test_two_different_voices_are_refused() -> None:
    assert "voice" in refused(b'{"input": "hi", "voice": "A", "speaker": "B"}').message


def test_embedding_and_audio_together_are_refused() -> None:
    assert "ref_audio" in refused(b'{"input": "hi", "speaker_embedding": [1.0], "ref_audio": "x"}').message


@pytest.mark.parametrize(
    ("stream", "stream_format", "delivery"),
    [
        (None, None, "whole"),
        (False, None, "whole"),
        (True, None, "sse"),
        (None, "sse", "sse"),
        (None, "audio", "audio"),
        (True, "audio", "audio"),
        (False, "audio", "audio"),
    ],
)
def test_delivery_follows_stream_and_stream_format(stream: bool | None, stream_format: str | None, delivery: str) -> None:
    """AP-03."""
    assert read(stream=stream, stream_format=stream_format).delivery == delivery
