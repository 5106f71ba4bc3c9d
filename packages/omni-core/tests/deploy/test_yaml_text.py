"""What is written is read back as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.deploy.reader import parse_deploy_text
from omni_core.deploy.yaml_text import to_yaml

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_ODD = st.sampled_from(
    ["1e3", "yes", "0o17", "010", "null", "~", "<<", "${HOME}", "$${HOME}", "$$$", ".inf", "- a", "a: b", "", "\t"]
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT | _ODD
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT | _ODD, inner, max_size=3))


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), _VALUES, max_size=5))
def test_reader_reads_back_what_was_written(document: dict[str, Any]) -> None:
    assert parse_deploy_text(to_yaml(document), "my.yaml").plain() == document


@pytest.mark.parametrize(
    ("value", "expected"),
    [("talker", "a: talker\n"), ("0", 'a: "0"\n'), ("yes", 'a: "yes"\n'), ("${X}", 'a: "$${X}"\n'), ([1], "a:\n  - 1\n")],
)
def test_text_is_plain_where_it_may_be(value: Any, expected: str) -> None:
    assert to_yaml({"a": value}) == expected
