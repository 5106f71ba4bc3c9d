from __future__ import annotations

from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_tts.stream import check_options, ramp_sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec_chunk_frames": 0}, "at least 1, not 0"),
        ({"codec_chunk_frames": 2.5}, "whole number"),
        ({"codec_chunk_frames": True}, "whole number"),
        ({"ref_code_context_frames": -1}, "at least 0"),
        ({"talker_first_audio": "yes"}, "true or false"),
        ({"codec_chunk_adaptive": 1}, "true or false"),
        ({"codec_chunk_safety_margin_ms": -1}, "at least 0"),
        ({"codec_chunk_ramp_divisor": 0}, "at least 1"),
        ({"left_context": 1}, "not an option"),
    ],
)
def test_a_value_that_cannot_be_used_is_an_error_with_its_place(options: dict[str, Any], message: str) -> None:
    """TT-15."""
    with pytest.raises(ConfigError, match=message) as caught:
        check_options(options, "connectors.shm.extra")

    assert caught.value.where == "connectors.shm.extra"


@pytest.mark.parametrize(
    ("value", "sizes"),
    [
        ([1, 4, 25], (1, 4, 25)),
        ("1, 4,25", (1, 4, 25)),
        (None, None),
        ([], None),
        ([25], None),
        ("25", None),
        ([1, 0], None),
        ([1, True], None),
        ([1, 2.0], None),
        ("1,-2", None),
        ("1,,2", None),
        (7, None),
    ],
)
def test_a_ramp_is_at_least_two_whole_numbers_above_zero(value: Any, sizes: tuple[int, ...] | None) -> None:
    """TT-15."""
    assert ramp_sizes(value) == sizes
