"""Pieces of text to speak: joined they are the text, and they do not depend on how it arrived (E09)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.errors import RequestError
from omni_server.graphemes import is_inside_grapheme
from omni_server.text_pieces import MAX_PIECE_CHARS, PieceSplitter

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
TANGIBLE = [
    *"aZ7é 。！？،؟۔।.!?…\n,;:，：、\"'”)(」—-/",
    "Dr.",
    "e.g. ",
    "3.14",
    "https://a.b/c?d=e ",
    "U.S.A. ",
    "e\u0301",
    FAMILY,
    "🇩🇪",
    "👍🏽",
    "क्षि",
    "한",
    "\u1112\u1161\u11ab",
    "  ",
]
texts = st.lists(st.one_of(st.sampled_from(TANGIBLE), st.text(st.characters(exclude_categories=["Cs"]), max_size=3))).map(
    "".join
)
granularities = st.sampled_from(["none", "sentence", "clause"])
limits = st.sampled_from([1, 2, 7, 20, MAX_PIECE_CHARS])


def pieces(text: str, granularity: Any = "sentence", limit: int = MAX_PIECE_CHARS) -> list[str]:
    splitter = PieceSplitter(granularity, limit)
    return [*splitter.push(text), *splitter.flush()]


def units(text: str) -> list[str]:
    """Return the UTF-16 units of a text, as a client may send them."""
    raw = text.encode("utf-16-le")
    return [raw[place : place + 2].decode("utf-16-le", "surrogatepass") for place in range(0, len(raw), 2)]


@given(texts, granularities, limits)
def test_pieces_joined_are_the_text(text: str, granularity: str, limit: int) -> None:
    """E09: nothing lost, nothing doubled."""
    found = pieces(text, granularity, limit)

    assert "".join(found) == text
    assert all(found)


@given(texts, granularities, limits, st.randoms(use_true_random=False))
def test_pieces_do_not_depend_on_how_the_text_arrives(text: str, granularity: str, limit: int, chance: random.Random) -> None:
    """E09: down to halves of surrogate pairs."""
    splitter = PieceSplitter(granularity, limit)
    parts = units(text)
    found = []
    while parts:
        size = chance.choice([1, 1, 2, 3, 10, 100])
        found += splitter.push("".join(parts[:size]))
        del parts[:size]
    found += splitter.flush()

    assert found == pieces(text, granularity, limit)
    assert len(splitter) == 0


@given(texts, st.sampled_from(["sentence", "clause"]), limits)
def test_pieces_are_bounded(text: str, granularity: str, limit: int) -> None:
    assert all(len(piece) <= limit for piece in pieces(text, granularity, limit))


@given(texts, st.sampled_from(["sentence", "clause"]))
def test_no_cut_lies_within_a_visible_character(text: str, granularity: str) -> None:
    place = 0
    for piece in pieces(text, granularity)[:-1]:
        place += len(piece)
        assert not is_inside_grapheme(text, place)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("Hello there. How are you? Fine!", ["Hello there. ", "How are you? ", "Fine!"], id="plain"),
        pytest.param("Dr. Li met Mr. Wu. They spoke.", ["Dr. Li met Mr. Wu. ", "They spoke."], id="abbreviations"),
        pytest.param("It is e.g. here, approx. there. Yes.", ["It is e.g. here, approx. there. ", "Yes."], id="e.g."),
        pytest.param("The U.S.A. Army paid J. R. Fox. Done.", ["The U.S.A. Army paid J. R. Fox. ", "Done."], id="initials"),
        pytest.param("See https://a.example/x.html?y=1.5! Go.", ["See https://a.example/x.html?y=1.5! ", "Go."], id="url"),
        pytest.param("Version 1.2.3 costs 1,000.50 euros. OK.", ["Version 1.2.3 costs 1,000.50 euros. ", "OK."], id="decimals"),
        pytest.param("Wait... what? Wait... No.", ["Wait... what? ", "Wait... ", "No."], id="ellipsis"),
        pytest.param("1. First thing.\n2. Second thing.", ["1. First thing.\n", "2. Second thing."], id="numbered list"),
        pytest.param('"Stop!" he said. "Why?" she asked.', ['"Stop!" he said. ', '"Why?" she asked.'], id="quotes"),
        pytest.param("“Go.” (Now.) Yes.", ["“Go.” ", "(Now.) ", "Yes."], id="closing signs"),
        pytest.param("你好。今天3.5度！“走吧。”他说。", ["你好。", "今天3.5度！", "“走吧。”", "他说。"], id="chinese"),
        pytest.param("版本３．１４很好．下一句", ["版本３．１４很好．", "下一句"], id="full-width dots"),
        pytest.param("كيف حالك؟ أنا بخير۔ شكرا", ["كيف حالك؟ ", "أنا بخير۔ ", "شكرا"], id="arabic and urdu"),
        pytest.param("यह है। वह है॥ ठीक", ["यह है। ", "वह है॥ ", "ठीक"], id="hindi"),
        pytest.param("No marks at all", ["No marks at all"], id="none"),
        pytest.param(
            "Title\n\nFirst line\nsame sentence. Next", ["Title\n\n", "First line\nsame sentence. ", "Next"], id="lines"
        ),
        pytest.param("... Hello. ... Bye", ["... Hello. ", "... Bye"], id="leading dots"),
        pytest.param(f"Hi! {FAMILY} Ho!️ Yes", ["Hi! ", f"{FAMILY} Ho!️ ", "Yes"], id="emoji"),
        pytest.param("  ", ["  "], id="blank"),
        pytest.param("", [], id="empty"),
    ],
)
def test_sentences_are_cut_where_a_reader_pauses(text: str, wanted: list[str]) -> None:
    assert pieces(text) == wanted


def test_clauses_are_cut_too_unless_they_are_short_or_numbers() -> None:
    text = "Yes, the house, which costs 1,000 at 12:30, is old; very old. 好，今天的天气非常好，我们走吧。"

    assert pieces(text, "clause") == [
        "Yes, the house, ",
        "which costs 1,000 at 12:30, ",
        "is old; very old. ",
        "好，今天的天气非常好，",
        "我们走吧。",
    ]


def test_no_granularity_keeps_everything_together() -> None:
    text = "One. Two! " * 1000

    assert pieces(text, "none") == [text]


def test_text_without_marks_is_cut_at_white_space() -> None:
    """E09: 100 kB without punctuation."""
    text = "words and more words " * 5000

    found = pieces(text)

    assert max(map(len, found)) <= MAX_PIECE_CHARS
    assert all(piece.endswith(" ") for piece in found)
    assert len(found) < len(text) / MAX_PIECE_CHARS * 1.2


def test_text_without_white_space_is_cut_between_characters() -> None:
    text = FAMILY * 200

    found = pieces(text)

    assert "".join(found) == text
    assert all(len(piece) % len(FAMILY) == 0 for piece in found)


def test_a_sentence_is_given_out_as_soon_as_what_follows_is_known() -> None:
    splitter = PieceSplitter()

    assert splitter.push("Hello there.") == []
    assert splitter.push(" ") == []
    assert splitter.push("How") == ["Hello there. "]
    assert len(splitter) == 3
    assert splitter.push("ever。") == []
    assert splitter.push("好") == ["However。"]


def test_little_is_held_back_while_text_without_marks_arrives() -> None:
    splitter = PieceSplitter()

    held = []
    for _ in range(5000):
        splitter.push("a")
        held.append(len(splitter))

    assert max(held) <= MAX_PIECE_CHARS + 32


def test_half_of_a_pair_that_stays_alone_is_refused() -> None:
    splitter = PieceSplitter()
    splitter.push("Hello \ud83d")

    with pytest.raises(RequestError, match="surrogate") as caught:
        splitter.push("there")

    assert caught.value.param == "text"
    splitter.push("x\ud83d")
    with pytest.raises(RequestError, match="surrogate"):
        splitter.flush()
    assert splitter.flush() == ["Hello x"]


def test_cleared_text_does_not_come_back() -> None:
    splitter = PieceSplitter()
    splitter.push("Hello \ud83d")

    splitter.clear()

    assert splitter.flush() == []
