from typing import Any

from omni_core.deploy.outcome import Outcome, place_of
from omni_core.deploy.provenance import Provenance
from omni_core.stage import Source


def test_changed_values_keep_their_place_and_show_the_new_value() -> None:
    provenance = Provenance({"moe_backend": Source("overlay", "my.yaml:1:2", "Triton")}, {"moe_backend": ()})
    arguments: dict[str, Any] = {"moe_backend": "Triton"}

    Outcome({"moe_backend": "triton"}).apply(arguments, {}, provenance)

    assert arguments == {"moe_backend": "triton"}
    assert provenance.sources["moe_backend"] == Source("overlay", "my.yaml:1:2")
    assert provenance.sources["moe_backend"].value == "triton"


def test_removed_values_are_forgotten_with_what_is_inside() -> None:
    provenance = Provenance()
    provenance.sources = {"a": Source("base"), "a.b": Source("base"), "ab": Source("base")}
    provenance.losers = {"a": (), "a.b": (), "ab": ()}
    arguments: dict[str, Any] = {"a": {"b": 1}, "ab": 2}

    Outcome({"a": None, "never_there": None}).apply(arguments, {}, provenance)

    assert arguments == {"ab": 2}
    assert set(provenance.sources) == {"ab"}
    assert set(provenance.losers) == {"ab"}


def test_values_inside_a_mapping_inherit_the_source_of_the_mapping() -> None:
    provenance = Provenance({"a": Source("flag", "--a", "x")}, {"a": (Source("base", "b.yaml:1:1", "y"),)})
    loser = Source("overlay", "o.yaml:1:1", "z")

    Outcome({"a": {"default": {"backend": "X"}}}, sources={"a.default": Source("platform")}, losers={"a": (loser,)}).apply(
        {}, {}, provenance
    )

    assert provenance.sources["a"] == Source("flag", "--a")
    assert provenance.sources["a.default.backend"] == Source("platform")
    assert provenance.sources["a.default.backend"].value == "X"
    assert [item.value for item in provenance.losers["a"]] == ["z", "y"]


def test_environment_that_a_check_sets_is_a_default() -> None:
    provenance, env = Provenance(), {"A": "1"}

    Outcome(env={"B": "2"}).apply({}, env, provenance)

    assert env == {"A": "1", "B": "2"}
    assert provenance.sources["env.B"] == Source("default")
    assert provenance.sources["env.B"].value == "2"


def test_place_is_that_of_the_nearest_known_part() -> None:
    sources = {"a": Source("base", "f:1:1"), "a.b": Source("base", "f:2:1"), "a.b.c": Source("default")}

    assert place_of(sources, "a", "b", "c", "d") == "f:2:1"
    assert place_of(sources, "x", "y") == ""
