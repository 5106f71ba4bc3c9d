"""Properties of merging and explaining: how layers may be grouped, and that what is explained is what was resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_core.deploy.explain import all_settings
from omni_core.deploy.merge import merge, merge_all, settle
from omni_core.deploy.tree import Node, from_plain
from omni_core.stage import Source

WITH_DESK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
LEAVES = st.none() | st.booleans() | st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2)


def layer(leaves: st.SearchStrategy[Any], depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings: `x` and `y` are always values and `a` and `b` always mappings, so that no path changes its kind."""
    optional: dict[str, Any] = dict.fromkeys("xy", leaves)
    if depth:
        optional.update(dict.fromkeys("ab", layer(leaves, depth - 1)))
    return st.fixed_dictionaries({}, optional=optional)


def trees(plain: Sequence[Mapping[str, Any]]) -> list[Node]:
    return [from_plain(content, Source("overlay", f"{number}.yaml:1:1")) for number, content in enumerate(plain)]


@given(st.lists(layer(LEAVES), min_size=3, max_size=5), st.data())
def test_merge_is_associative_where_no_path_changes_its_kind(plain: list[dict[str, Any]], data: st.DataObject) -> None:
    """MG-01, BC-02: values, sources and losers; a null erases a value, whichever layers are merged first."""
    layers = trees(plain)
    cut = data.draw(st.integers(1, len(layers) - 1))

    grouped = merge(merge_all(layers[:cut]), merge_all(layers[cut:]))

    assert grouped == merge_all(layers)


def test_mapping_that_a_layer_erases_is_merged_from_below() -> None:
    """DY-04: here grouping matters. Files merge from the lowest up, so that the null takes away all that is below it."""
    below, null, above = trees([{"env": {"A": "1"}}, {"env": None}, {"env": {"B": "2"}}])

    assert merge_all([below, null, above]).plain() == {"env": {"B": "2"}}
    assert merge(below, merge(null, above)).plain() == {"env": {"A": "1", "B": "2"}}


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=3, max_size=5), st.data())
def test_appended_lists_can_be_grouped_in_any_way(parts: list[list[int]], data: st.DataObject) -> None:
    """MG-03 with `!append`, also where nothing is below it."""

    def tagged(position: int, items: list[int]) -> Node:
        source = Source("overlay", f"{position}.yaml:1:1")
        content = from_plain(items, source)
        return Node({"x": Node(content.value, source, tag="append")}, source)

    layers = [tagged(position, items) for position, items in enumerate(parts)]
    cut = data.draw(st.integers(1, len(layers) - 1))

    grouped = merge(merge_all(layers[:cut]), merge_all(layers[cut:]))

    assert settle(grouped).plain() == settle(merge_all(layers)).plain() == {"x": [item for items in parts for item in items]}


FIELDS = ("max_num_seqs", "dtype", "enforce_eager")
VALUES = {
    "max_num_seqs": st.integers(1, 64),
    "dtype": st.sampled_from(["float32", "float16", "bfloat16"]),
    "enforce_eager": st.booleans(),
}
STAGES = st.fixed_dictionaries(
    {},
    optional={
        stage: st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in VALUES.items()})
        for stage in (0, 1)
    },
)
SECTION = st.tuples(st.none() | st.just("unset") | VALUES["dtype"], STAGES)
"""`dtype` of the whole pipeline, `unset` where the section does not have it, and fields of stages."""


def section(wide: Any, stages: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    top = {} if wide == "unset" else {"dtype": wide}
    return {**top, "stages": [{"stage_id": stage, **fields} for stage, fields in stages.items()]}


def candidates(
    name: str, stage: int, files: Sequence[Any], line: Sequence[tuple[str, Mapping[Any, Any]]]
) -> list[tuple[str, Any]]:
    """Return everything said about a field, the strongest first, by the rules as they are written: (layer, value)."""
    found: list[tuple[str, Any]] = []
    for layer_name, said in line:  # None is nothing that a user typed
        fields = said.get(stage, {}) if layer_name == "stage override" else said
        if fields.get(name) is not None:
            found.append((layer_name, fields[name]))
    names = ("platform", "overlay", "base")
    found += [
        (kind, stages[stage][name]) for kind, (_, stages) in zip(names, files, strict=True) if name in stages.get(stage, {})
    ]
    if name == "dtype":
        found += [(kind, wide) for kind, (wide, _) in zip(names, files, strict=True) if wide != "unset"]
    return found


@WITH_DESK
@given(
    base=SECTION,
    overlay=SECTION,
    platform=SECTION,
    flags=st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in VALUES.items()}),
    overrides=STAGES,
)
def test_explained_winner_and_losers_are_those_of_the_rules(
    desk: Any, base: Any, overlay: Any, platform: Any, flags: dict[str, Any], overrides: Any
) -> None:
    """PR-01 to PR-03, DY-03 to DY-05, PL-03: against an independent reading of the precedence."""
    desk.write("base.yaml", yaml.safe_dump(section(*base)))
    upper = {"base_config": "base.yaml", **section(*overlay), "platforms": {"cuda": section(*platform)}}

    resolved = desk.resolve("two", yaml.safe_dump(upper), overrides=overrides, **flags)

    explained = {(item.stage, item.field): item for item in all_settings(resolved)}
    for stage in (0, 1):
        for name in FIELDS:
            ranked = candidates(name, stage, (platform, overlay, base), [("stage override", overrides), ("flag", flags)])
            value = ranked[0][1] if ranked else None
            setting = explained.get((stage, name))
            assert resolved.stages[stage].engine_args.get(name) == value
            assert (setting is None or setting.value is None) is (value is None)
            if setting is not None:
                assert (setting.value, setting.source.layer) == (value, ranked[0][0])
                assert [(loser.layer, loser.value) for loser in setting.losers] == ranked[1:]


@WITH_DESK
@given(layers=st.lists(STAGES, min_size=2, max_size=4))
def test_chain_of_bases_and_files_on_the_command_line_come_to_the_same(desk: Any, layers: list[Any]) -> None:
    """BC-01, BC-02: a chain may be cut anywhere, or be written as several --deploy-config."""
    for number, stages in enumerate(layers):
        base = {"base_config": f"{number - 1}.yaml"} if number else {}
        desk.write(f"{number}.yaml", yaml.safe_dump({**base, **section("unset", stages)}))
        desk.write(f"flat{number}.yaml", yaml.safe_dump(section("unset", stages)))

    chained = desk.resolve("two", files=[f"{len(layers) - 1}.yaml"])
    listed = desk.resolve("two", files=[f"flat{number}.yaml" for number in range(len(layers))])
    mixed = desk.resolve("two", files=["0.yaml", *(f"flat{number}.yaml" for number in range(1, len(layers)))])

    assert [stage.engine_args for stage in chained.stages] == [stage.engine_args for stage in listed.stages]
    assert chained.config_hash == listed.config_hash == mixed.config_hash
