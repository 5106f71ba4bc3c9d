"""Names of voices: which may be, and which are the same."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from omni_core.errors import RequestError
from omni_server.voice_names import MAX_NAME_CHARS, checked_name, fold
from omni_server.voice_store import VoiceStore


def attempt(text: str) -> str | RequestError:
    try:
        return checked_name(text)
    except RequestError as error:
        return error


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_a_request_error_that_says_name(text: str) -> None:
    found = attempt(text)

    if isinstance(found, RequestError):
        assert found.param == "name"
        return
    assert 0 < len(found) <= MAX_NAME_CHARS
    assert not set(found) & set("/\\:*?<>|\0\n~%")
    assert checked_name(found) == found
    assert fold(found) == fold(text)


@given(st.text(max_size=80))
def test_folding_is_done_with_once(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@given(st.text(st.characters(), max_size=80))
def test_any_name_is_one_file_of_the_folder(text: str) -> None:
    store = VoiceStore(Path("/voices"), 1)

    path = store.path(text)

    assert path.parent == Path("/voices")
    assert path == store.path(f" {text} ")
