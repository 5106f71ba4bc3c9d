"""The agent's text: pieces of words, letters over several tokens, tokens that say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_duplex.personaplex.prompt import wrapped
from omni_duplex.personaplex.shape import TEXT_TOKENIZER, Shape
from omni_duplex.personaplex.words import TextTokens, Words

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def tokens(folder: Path, shape: Shape) -> TextTokens:
    return TextTokens(folder, shape)


def said(tokens: TextTokens, ids: list[int]) -> list[str]:
    words = Words(tokens)
    return [words.add(token) for token in ids]


def byte(value: int) -> int:
    return 4 + value


def test_words_begin_with_their_space_and_signs_say_nothing(tokens: TextTokens) -> None:
    hello = tokens.prompt("hello")

    assert "hello" in "".join(said(tokens, hello))
    assert said(tokens, [0, 1, 2, 3]) == ["", "", "", ""]


def test_a_letter_of_several_bytes_comes_with_its_last(tokens: TextTokens) -> None:
    ids = [byte(value) for value in "äß".encode()]

    assert said(tokens, [ids[0], 3, ids[1], ids[2], ids[3]]) == ["", "", "ä", "", "ß"]


def test_a_letter_that_is_cut_off_is_shown_as_such(tokens: TextTokens, shape: Shape) -> None:
    word = shape.text_vocab - 9

    assert said(tokens, [byte(0xE2), word, byte(0xFF)]) == ["", "\ufffd hello", "\ufffd"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("  ", ""),
        ("be kind", "<system> be kind <system>"),
        ("<system> be kind <system>", "<system> be kind <system>"),
    ],
)
def test_instructions_stand_between_tags(text: str, expected: str) -> None:
    assert wrapped(text) == expected


def test_a_tokenizer_of_another_network_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="269 pieces and the network 32000"):
        TextTokens(folder, Shape())


def test_a_damaged_tokenizer_is_named(tmp_path: Path, shape: Shape) -> None:
    (tmp_path / TEXT_TOKENIZER).write_bytes(b"\x00\x01")

    with pytest.raises(ConfigError, match=TEXT_TOKENIZER):
        TextTokens(tmp_path, shape)
