from omni_core.deploy.tree import from_plain
from omni_core.stage import Source

TREE = from_plain({"a": [{"b": 1}], "c": None}, Source("base", "x:1:1"))


def test_path_leads_to_a_value_or_to_the_deepest_on_the_way() -> None:
    assert TREE.find(["a", 0, "b"]).value == 1
    assert TREE.find(["a", 7]).plain() == [{"b": 1}]
    assert TREE.existing(["a", 0, "int", "b"]) == ["a", 0]


def test_null_counts_as_not_set() -> None:
    assert TREE.get("c") is None
    assert TREE.get("d") is None


def test_layer_changes_in_the_whole_tree_and_places_stay() -> None:
    changed = TREE.with_layer("platform")

    assert changed.find(["a", 0, "b"]).source == Source("platform", "x:1:1")
    assert changed.plain() == TREE.plain()
