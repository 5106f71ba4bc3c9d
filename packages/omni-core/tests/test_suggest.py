from __future__ import annotations

import difflib

import pytest

from omni_core.suggest import MAX_CHARS, did_you_mean, way_out


def test_close_name_is_suggested_in_its_own_spelling() -> None:
    assert did_you_mean("sharedmemoryconector", ["SharedMemoryConnector", "Other"]) == "did you mean 'SharedMemoryConnector'?"


def test_far_name_gets_the_list() -> None:
    assert way_out("zzz", ["b", "a"], "names") == "the names are a, b"
    assert way_out("zzz", [], "names") == "there are no names"


def test_only_the_beginning_of_a_long_name_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come from clients too, and comparing megabytes would stop a server for seconds."""
    looked_at: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda name, *_, **__: looked_at.append(name) or [])

    assert did_you_mean("a" * 10_000_000, ["b"]) == ""
    assert [len(name) for name in looked_at] == [MAX_CHARS]
