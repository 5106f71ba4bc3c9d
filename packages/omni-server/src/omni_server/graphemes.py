"""What belongs to one visible character: enough of Unicode's rules to never cut an accent, an emoji or a syllable in two."""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"
_VIRAMA = 9
"""Combining class of the signs that bind two consonants of Indic scripts."""


def is_extender(sign: str) -> bool:
    """Whether a character belongs to the one before it: accents, vowel signs, variation selectors, joiners, skin tones."""
    if sign < "\u0300":
        return False
    is_tone = "\U0001f3fb" <= sign <= "\U0001f3ff"
    is_tag = "\U000e0020" <= sign <= "\U000e007f"
    return sign == _JOINER or is_tone or is_tag or unicodedata.category(sign).startswith("M")


def is_inside_grapheme(text: str, position: int) -> bool:
    """Whether the place between the characters `position - 1` and `position` lies within one visible character."""
    if not 0 < position < len(text):
        return False
    before, after = text[position - 1], text[position]
    if before < "\u0300" and after < "\u0300":
        return before == "\r" and after == "\n"
    if is_extender(after) or before == _JOINER:
        return True
    if _is_flag_letter(before) and _is_flag_letter(after):
        return _flag_letters_before(text, position) % 2 == 1
    if "\u1160" <= after <= "\u11ff":  # vowels and final consonants of Hangul syllables
        return "\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"
    return unicodedata.combining(before) == _VIRAMA and after.isalpha()


def is_wide(sign: str) -> bool:
    """Whether a character is one of the scripts that put no space between words."""
    return unicodedata.east_asian_width(sign) in ("W", "F")


def _is_flag_letter(sign: str) -> bool:
    return "\U0001f1e6" <= sign <= "\U0001f1ff"


def _flag_letters_before(text: str, position: int) -> int:
    count = 0
    while count < position and _is_flag_letter(text[position - 1 - count]):
        count += 1
    return count
