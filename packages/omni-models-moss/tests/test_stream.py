from __future__ import annotations

import logging
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.modelkit import first_chunk
from omni_models_moss.stream import ChunkPolicy, check_options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 15, 15]),
        ({"codec_chunk_frames": 4, "initial_codec_chunk_frames": 2}, [2, 4, 4]),
        ({"codec_chunk_frames": 4, "initial_codec_chunk_frames": 9}, [4, 4, 4]),
        ({"codec_chunk_frames": 4, "initial_codec_chunk_frames": 0}, [4, 4, 4]),
    ],
    ids=["default", "configured", "cut to the steady size", "off"],
)
def test_first_payload_may_be_smaller(options: dict[str, Any], expected: list[int]) -> None:
    policy = ChunkPolicy.read(options)

    assert [_size(policy, sent) for sent in range(3)] == expected


def _size(policy: ChunkPolicy, sent: int) -> int:
    """Return with how many frames the payload after `sent` others leaves."""
    return next(frames for frames in range(1, 99) if policy.is_due(frames, sent))


def test_without_streaming_no_payload_leaves_before_the_end() -> None:
    policy = ChunkPolicy.read({"codec_streaming": False, "codec_chunk_frames": 1})

    assert not any(policy.is_due(frames, sent) for frames in (1, 99) for sent in (0, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"codec_chunk_frames": 1, "codec_left_context_frames": 0, "initial_codec_chunk_frames": 0},
        {"codec_dispatch_max_rows": 16, "codec_dispatch_max_wait_ms": 6},
        {"codec_dispatch_max_wait_ms": 0.5, "codec_streaming": False, "talker_first_audio": True, "max_inflight": 2},
    ],
)
def test_options_that_can_be_used_are_accepted(options: dict[str, Any]) -> None:
    check_options(options, "here")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec_chunk_frames": 0}, "codec_chunk_frames must be a whole number of at least 1, not 0"),
        ({"codec_left_context_frames": -1}, "codec_left_context_frames must be a whole number of at least 0, not -1"),
        ({"initial_codec_chunk_frames": 1.5}, "initial_codec_chunk_frames must be a whole number of at least 0, not 1.5"),
        ({"codec_dispatch_max_rows": True}, "codec_dispatch_max_rows must be a whole number of at least 1, not True"),
        ({"codec_dispatch_max_wait_ms": -6}, "codec_dispatch_max_wait_ms must be a number of milliseconds"),
        ({"codec_dispatch_max_wait_ms": float("nan")}, "codec_dispatch_max_wait_ms must be a number of milliseconds"),
        ({"codec_streaming": "yes"}, "codec_streaming must be true or false, not 'yes'"),
        ({"codec_dispatch_rows": 1}, "'codec_dispatch_rows' is not an option of MOSS-TTS"),
    ],
)
def test_wrong_option_names_key_and_value(options: dict[str, Any], message: str) -> None:
    """E34."""
    with pytest.raises(ConfigError) as caught:
        check_options(options, "here")

    assert message in caught.value.message
    assert caught.value.where == "here"


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 1), (4, 4), (0, 15), (99, 15)], ids=["the edge's", "its own", "off", "cut to steady"]
)
def test_a_request_may_choose_the_size_of_the_first_payload(asked: int | None, expected: int) -> None:
    assert _size(ChunkPolicy.read({}, asked), 0) == expected


def test_a_request_that_asks_for_more_than_a_payload_is_cut_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """TT-15; what the edge asks for was said when the file was read."""
    with caplog.at_level(logging.WARNING, logger=first_chunk.__name__):
        for _ in range(2):
            assert ChunkPolicy.read({"codec_chunk_frames": 7}, 32).initial == 7
        assert ChunkPolicy.read({"codec_chunk_frames": 7, "initial_codec_chunk_frames": 33}).initial == 7

    assert caplog.messages == ["a request's initial_codec_chunk_frames 32 is cut to codec_chunk_frames 7 (said once)"]
