"""Cut text into pieces to be spoken while the rest of it still arrives: sentences or clauses.

The pieces joined are the text, and they are the same however the text was cut on its way here, down to single UTF-16 units:
what depends on the characters that follow is decided when they are there, and only a window of fixed size counts.
"""

from __future__ import annotations

import re
from typing import Literal

from omni_core.errors import RequestError
from omni_server.graphemes import is_extender, is_inside_grapheme, is_wide

Granularity = Literal["none", "sentence", "clause"]

MAX_PIECE_CHARS = 300
"""A piece without any mark is cut here, at white space if there is some: about 20 seconds of speech."""
MIN_CLAUSE_WIDTH = 12
"""Clauses narrower than this stay with what follows; a wide character counts as two."""
_LOOKAHEAD = 32
_MAX_CLUSTER = 32

_FULL = "。！？｡؟۔।॥։።፧፨။៕།‼⁇⁈⁉"
"""Marks that end a sentence whatever follows."""
_SOFT = ".．…!?"
"""Marks that end a sentence only sometimes: what is before and after decides."""
_CLAUSE_FULL = "，、；：،؛—"
_CLAUSE_SOFT = ",;:"
_CLOSERS = "\"'”’»›)]}」』）】》〉〕］｝"
_OPENERS = "\"'“‘«‹([{「『（【《〈〔［｛"

_SENTENCE_MARK = re.compile(rf"[{re.escape(_FULL + _SOFT)}\n]")
_ANY_MARK = re.compile(rf"[{re.escape(_FULL + _SOFT + _CLAUSE_FULL + _CLAUSE_SOFT)}\n]")
_CLAUSE_END = re.compile(rf"[{re.escape(_CLAUSE_SOFT)}]\s+|[{re.escape(_CLAUSE_FULL)}]")
_SPACE = re.compile(r"\s+")
_LAST_WORD = re.compile(r"\S*$")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_SURROGATE = re.compile("[\ud800-\udfff]")

_ABBREVIATED = """
dr mr mrs ms mx prof sr jr st mt ft rev hon gen col lt sgt capt cmdr gov sen rep pres vs etc approx appt dept est ext inc ltd
co corp bros no nr nos vol vols fig figs ch sec p pp ed eds cf al ca jan feb mar apr jun jul aug sep sept oct nov dec mon tue
wed thu fri sat sun min max avg ave blvd rd hr fr bzw usw bspw ggf evtl mio mrd str tel mme mlle mgr sra sta ud uds av núm pág
sig dott ing avv ecc
"""
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())


class PieceSplitter:
    """Collect text and give out the pieces that are complete.

    Args:
        granularity: Where to cut; `none` keeps everything together until `flush`.
        limit: Most characters of a piece; `none` has no limit.
    """

    def __init__(self, granularity: Granularity = "sentence", limit: int = MAX_PIECE_CHARS) -> None:
        self._cuts = granularity != "none"
        self._marks = _ANY_MARK if granularity == "clause" else _SENTENCE_MARK
        self._limit = limit
        self._parts: list[str] = []
        self._half = ""
        self._size = 0

    def __len__(self) -> int:
        """Return how many characters wait for their piece to be complete."""
        return self._size + len(self._half)

    def push(self, text: str) -> list[str]:
        """Return the pieces that are complete now.

        Raises:
            RequestError: It has half of a surrogate pair other than at its end; neither it nor a half that waited is taken.
        """
        text, self._half = self._half + text, ""
        half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""  # its other half comes with the next message
        text = join_surrogates(text.removesuffix(half))
        self._half = half
        return self._take(text)

    def flush(self) -> list[str]:
        """Return what is left, and begin anew.

        Raises:
            RequestError: The text ended within a surrogate pair; what is left besides is there for the next `flush`.
        """
        half, self._half = self._half, ""
        join_surrogates(half)
        pieces = self._take("", is_final=True)
        rest = "".join(self._parts)
        self._keep("")
        return [*pieces, rest] if rest else pieces

    def clear(self) -> None:
        """Forget what is not complete."""
        self._half = ""
        self._keep("")

    def _keep(self, rest: str) -> None:
        self._parts = [rest] if rest else []
        self._size = len(rest)

    def _take(self, text: str, *, is_final: bool = False) -> list[str]:
        self._parts.append(text)
        self._size += len(text)
        if not self._cuts:
            return []
        held = "".join(self._parts)
        reach = self._limit + _LOOKAHEAD
        begin, pieces = 0, []
        while True:
            window = held[begin : begin + reach]
            cut = self._find_cut(window, is_complete=is_final or len(window) == reach)
            if cut is None:
                break
            pieces.append(held[begin : begin + cut])
            begin += cut
        self._keep(held[begin:])
        return pieces

    def _find_cut(self, window: str, *, is_complete: bool) -> int | None:
        """Return where the first piece in `window` ends; None if that is not known yet, or all of it is one piece."""
        position = 0
        while (mark := self._marks.search(window, position)) is not None:
            run_end, next_word = _run(window, mark.start())
            if next_word == len(window) and not is_complete:
                return None
            if next_word > self._limit:
                break
            if _ends_piece(window, mark.start(), run_end, next_word):
                return next_word
            position = max(run_end, mark.end())
        if is_complete and len(window) > self._limit:
            return _forced_cut(window, self._limit)
        return None


def join_surrogates(text: str) -> str:
    """Return `text` with the halves of surrogate pairs, which JSON may write one by one, as whole characters.

    Raises:
        RequestError: A half is alone.
    """
    if _SURROGATE.search(text) is None:
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        what = "the text has half of a surrogate pair without the other"
        raise RequestError(
            what, param="text", hint="send whole characters, or the other half first in the next message"
        ) from error


def _run(window: str, mark: int) -> tuple[int, int]:
    """Return where the marks and closing signs from `mark` on end, and where the white space behind them ends."""
    end = mark
    size = len(window)
    if window[mark] != "\n":
        same = _FULL + _SOFT if window[mark] in _FULL + _SOFT else ""
        end += 1
        while end < size and (window[end] in same or window[end] in _CLOSERS or is_extender(window[end])):
            end += 1
    after = end
    while after < size and window[after].isspace():
        after += 1
    return end, after


def _ends_piece(window: str, mark: int, run_end: int, next_word: int) -> bool:
    """Whether a piece ends before `next_word`, where the mark's run ends at `run_end`."""
    before, follower = window[:mark], window[next_word : next_word + 1]
    if not any(sign.isalnum() for sign in before) or (follower and is_inside_grapheme(window, next_word)):
        return False
    if window.count("\n", mark, next_word) >= 2:
        return True
    sign, is_spaced = window[mark], next_word > run_end or not follower
    if sign in _FULL:
        return True
    if sign in _CLAUSE_FULL + _CLAUSE_SOFT:
        is_number = not is_spaced and before[-1].isdigit() and follower.isdigit()
        may = sign in _CLAUSE_FULL or is_spaced
        return may and not is_number and _width(before.strip()) >= MIN_CLAUSE_WIDTH
    if sign == "．":
        return is_spaced or not (before[-1].isdigit() and follower.isdigit())
    if sign == "\n" or follower.islower():
        return False
    if not is_spaced:
        return is_wide(follower) and (sign != "." or is_wide(before[-1]))
    return sign != "." or run_end - mark > 1 or not _is_abbreviated(before)


def _is_abbreviated(before: str) -> bool:
    """Whether a dot behind `before` belongs to its last word: an abbreviation, initials, or the number of a list's item."""
    match = _LAST_WORD.search(before)
    word = (match.group() if match else "").lstrip(_OPENERS).lower()
    if word.isdigit():
        return before.rpartition("\n")[2].strip() == word
    return word in _ABBREVIATIONS or (_INITIALS.fullmatch(word) is not None and not is_wide(word[0]))


def _forced_cut(window: str, limit: int) -> int:
    """Return where to cut a text without a usable mark: behind a clause, at white space, between characters, anywhere."""
    head = window[:limit]
    for pattern in (_CLAUSE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(head, limit // 2)]
        for end in reversed(ends):
            if not is_inside_grapheme(window, end) and not head[:end].isspace():
                return end
    for end in range(limit, max(limit - _MAX_CLUSTER, 0), -1):
        if not is_inside_grapheme(window, end):
            return end
    return limit


def _width(text: str) -> int:
    return sum(2 if is_wide(sign) else 1 for sign in text)
