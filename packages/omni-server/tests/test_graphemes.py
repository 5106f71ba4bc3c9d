"""Where one visible character ends."""

from __future__ import annotations

import pytest

from omni_server.graphemes import is_inside_grapheme, is_wide


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param("e\u0301", id="accent"),
        pytest.param("👍🏽", id="skin tone"),
        pytest.param("👨\u200d👩\u200d👧", id="family"),
        pytest.param("🇩🇪", id="flag"),
        pytest.param("\u2764\ufe0f", id="emoji style"),
        pytest.param("🏴\U000e0067\U000e0062\U000e007f", id="tags"),
        pytest.param("क्षि", id="conjunct"),
        pytest.param("\u1112\u1161\u11ab", id="hangul"),
        pytest.param("가\u11a8", id="syllable and final"),
        pytest.param("\r\n", id="line end"),
    ],
)
def test_no_place_within_a_character_is_a_border(whole: str) -> None:
    text = f"a{whole}b"

    inside = [place for place in range(len(text) + 1) if is_inside_grapheme(text, place)]

    assert inside == list(range(2, 1 + len(whole)))


def test_flags_in_a_row_are_cut_between_two() -> None:
    text = "🇩🇪🇫🇷🇬🇧"

    assert [place for place in range(len(text)) if not is_inside_grapheme(text, place)] == [0, 2, 4]


@pytest.mark.parametrize(("sign", "wide"), [("好", True), ("か", True), ("한", True), ("Ａ", True), ("a", False), ("ع", False)])
def test_wide_scripts(sign: str, wide: bool) -> None:
    assert is_wide(sign) == wide
