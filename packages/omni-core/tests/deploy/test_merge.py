import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.deploy.merge import merge, merge_all
from omni_core.deploy.tree import Node, from_plain
from omni_core.stage import Source

BELOW, ABOVE = Source("base", "base.yaml:1:1"), Source("overlay", "over.yaml:1:1")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
MAPPING = st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3)


def merged(below: Any, above: Any) -> Node:
    return merge(from_plain(below, BELOW), from_plain(above, ABOVE))


def test_mappings_merge_by_key_at_every_depth() -> None:
    below = {"compilation_config": {"mode": 3, "pass_config": {"a": 1}}, "env": {"A": "1"}}
    above = {"compilation_config": {"pass_config": {"b": 2}}, "env": {"B": "2"}}

    assert merged(below, above).plain() == {
        "compilation_config": {"mode": 3, "pass_config": {"a": 1, "b": 2}},
        "env": {"A": "1", "B": "2"},
    }


def test_lists_and_the_kv_config_replace() -> None:
    below = {"sizes": [1, 2], "omni_kv_config": {"a": 1}}

    assert merged(below, {"sizes": [4], "omni_kv_config": {"b": 2}}).plain() == {"sizes": [4], "omni_kv_config": {"b": 2}}


def test_null_erases() -> None:
    """DY-04: null is not 'keep the parent'."""
    tree = merged({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": None})

    assert tree.get("gpu_memory_utilization") is None
    assert tree.find(["gpu_memory_utilization"]).source == ABOVE


def test_each_value_keeps_its_source() -> None:
    tree = merged({"a": {"x": 1, "y": 1}}, {"a": {"y": 2}})

    assert tree.find(["a", "x"]).source == BELOW
    assert tree.find(["a", "y"]).source == ABOVE


def test_change_of_kind_replaces_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """MG-03."""
    with caplog.at_level(logging.WARNING):
        assert merged({"a": {"x": 1}}, {"a": 5}).plain() == {"a": 5}
    assert "over.yaml:1:1: a replaces the whole value of base.yaml:1:1" in caplog.text


def leaves(plain: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(plain, dict):
        return {path: plain}
    return {where: leaf for key, item in plain.items() for where, leaf in leaves(item, (*path, key)).items()}


@given(MAPPING, MAPPING)
def test_every_value_of_the_upper_layer_is_in_the_result(below: Any, above: Any) -> None:
    found = leaves(merged(below, above).plain())

    assert {path: found.get(path, "lost") for path in leaves(above)} == leaves(above)


@given(MAPPING)
def test_layer_on_itself_changes_nothing(plain: Any) -> None:
    assert merged(plain, plain).plain() == plain


def test_null_between_two_mappings_erases_the_lower_one() -> None:
    """DY-04: layers merge from the lowest up, so a null also takes away what a later layer does not name."""
    trees = [from_plain(plain, BELOW) for plain in ({"env": {"A": "1"}}, {"env": None}, {"env": {"B": "2"}})]

    assert merge_all(trees).plain() == {"env": {"B": "2"}}


@given(MAPPING)
def test_empty_layer_changes_nothing(plain: Any) -> None:
    tree = from_plain(plain, BELOW)

    assert merge_all([from_plain({}, BELOW), tree, from_plain({}, ABOVE)]).plain() == plain
