from __future__ import annotations

from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_tts.stream import ChunkPolicy, check_options


def _sizes(policy: ChunkPolicy, count: int) -> list[int]:
    return [policy.size(sent) for sent in range(count)]


@pytest.mark.parametrize(
    ("options", "initial", "expected"),
    [
        ({}, None, [25, 25, 25]),
        ({"initial_codec_chunk_frames": 1}, None, [1, 25, 25]),
        ({"initial_codec_chunk_frames": 1}, 4, [4, 25, 25]),
        ({"initial_codec_chunk_frames": 1}, 0, [25, 25, 25]),
        ({"codec_chunk_frames": 10, "initial_codec_chunk_frames": 30}, None, [10, 10, 10]),
        ({"codec_chunk_ramp": [1, 4, 8]}, 2, [1, 4, 8]),
        ({"codec_chunk_ramp": "1, 4,8"}, None, [1, 4, 8]),
    ],
    ids=["default", "configured", "request beats configured", "request turns it off", "clamped", "ramp beats both", "text"],
)
def test_first_payloads_may_be_smaller(options: dict[str, Any], initial: int | None, expected: list[int]) -> None:
    assert _sizes(ChunkPolicy.read(options, initial), 3) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 25), ({"codec_left_context_frames": 72}, 72), ({"codec_left_context_frames": 72, "ref_code_context_frames": 8}, 8)],
)
def test_reference_context_falls_back_to_the_left_context(options: dict[str, Any], expected: int) -> None:
    """TT-08."""
    assert ChunkPolicy.read(options).ref_context == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec_chunk_frames": 0}, "at least 1, not 0"),
        ({"codec_chunk_frames": 2.5}, "whole number"),
        ({"codec_chunk_frames": True}, "whole number"),
        ({"ref_code_context_frames": -1}, "at least 0"),
        ({"talker_first_audio": "yes"}, "true or false"),
        ({"codec_chunk_ramp": []}, "list of whole numbers"),
        ({"codec_chunk_ramp": [0]}, "list of whole numbers"),
        ({"left_context": 1}, "not an option"),
    ],
)
def test_a_value_that_cannot_be_used_is_an_error_with_its_place(options: dict[str, Any], message: str) -> None:
    """TT-15."""
    with pytest.raises(ConfigError, match=message) as caught:
        check_options(options, "connectors.shm.extra")

    assert caught.value.where == "connectors.shm.extra"
